"""Build the documentation as a site in build/site: ``python docs/website/build.py``; a warning is a failure.

It builds from a copy of the pages and adds a table of contents from docs/README.md, pages with the source of every
linked file, the reference of the public names from their docstrings, and pictures instead of Mermaid blocks.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from api import MODULES, groups, slug, summary  # noqa: E402
from check import PAGES  # noqa: E402
from mermaid import picture_of  # noqa: E402

SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
LINK = re.compile(r"\]\(([^()\s]+)\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", ".cpp": "cpp", ".hpp": "cpp"}
PICTURES = {".png", ".svg"}


class Copy:
    """A copy of the pages in ``target``, with all linked files."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.sources: set[Path] = set()
        """Files and folders that have their own page in the site."""

    def write(self, path: Path, text: str) -> None:
        """Write a page to its path relative to the repository."""
        place = self.target / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def page(self, page: Path) -> None:
        """Copy a page."""
        self.write(page, self.rewritten(page, page.read_text(encoding="utf-8")))

    def rewritten(self, page: Path, text: str) -> str:
        """Return the text of a page with links to pages of the site, and pictures instead of Mermaid blocks."""
        parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
        for number, part in enumerate(parts):
            if part.startswith("```mermaid"):
                picture = picture_of(part.removeprefix("```mermaid\n").removesuffix("```"))
                parts[number] = f"![The rooms of the core]({self.copied(picture, page)})"
            elif part.startswith("```"):  # Sphinx allows only the language in an info string
                parts[number] = re.sub(r"\A```console", "```bash", re.sub(r"\A```(\w+) .*", r"```\1", part))
            else:
                parts[number] = LINK.sub(lambda link: f"]({self.linked(link[1], page)})", part)
        return "".join(parts)

    def linked(self, target: str, page: Path) -> str:
        """Return the target of a link of ``page`` in the site."""
        name, hash_, anchor = target.partition("#")
        if not name or re.match(r"[a-z]+:", target):
            return target
        path = (page.parent / name).resolve()
        if path.suffix in PICTURES:
            return self.copied(path, page)
        if path.is_dir() and path / "README.md" in PAGES:
            path /= "README.md"
        if path not in PAGES:
            self.sources.add(path)
            path = self.place(path)
        return f"{os.path.relpath(path, page.parent)}{hash_}{anchor}"

    def place(self, path: Path) -> Path:
        """Return the page that shows a file or a folder."""
        return path / "files.md" if path.is_dir() else path.with_name(f"{path.name}.md")

    def copied(self, picture: Path, page: Path) -> str:
        """Copy a picture; return its path from ``page``."""
        place = self.target / picture.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, place)
        return os.path.relpath(picture, page.parent)

    def add_sources(self) -> list[Path]:
        """Write a page for every linked file and folder; return these pages."""
        for path in sorted(self.sources):
            name = path.relative_to(ROOT).as_posix()
            if path.is_dir():
                inside = [p for p in sorted(path.rglob("*")) if p.is_file() and shown(p)]
                lines = [self.named(p, path) for p in inside]
                self.write(self.place(path), "\n".join([f"# {name}/", "", *lines, ""]))
            else:
                text = path.read_text(encoding="utf-8").rstrip()
                fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", text) or ["``"]))
                code = f"{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"
                self.write(self.place(path), f"# {name}\n\n{code}")
        return [self.place(path) for path in sorted(self.sources)]

    def named(self, path: Path, folder: Path) -> str:
        """Return a line of a folder's page, with a link if the file has a page."""
        name = path.relative_to(folder).as_posix()
        return f"- [{name}]({name}.md)" if path in self.sources else f"- {name}"


def shown(path: Path) -> bool:
    """Return True for a non-empty source file outside hidden and build folders."""
    written = path.suffix in LANGUAGES and path.stat().st_size
    return bool(written) and not any(part.startswith((".", "__pycache__", "build")) for part in path.parts[1:])


def contents(page: Path, entry: Callable[[Path], str]) -> Iterator[str]:
    """Yield the table of contents from docs/README.md: a caption for each heading, an entry for each link."""
    for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        caption, _, text = section.partition("\n")
        links = [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(text)]
        if pages := [entry(path) for path in dict.fromkeys(links) if path in PAGES]:
            yield toctree(pages, caption)


def toctree(entries: list[str], caption: str = "") -> str:
    """Return a hidden table of contents."""
    lines = [":hidden:", *([f":caption: {caption}"] if caption else []), "", *entries]
    return "\n".join(["```{toctree}", *lines, "```", ""])


def directive(owner: str, name: str, kind: str, options: str) -> str:
    """Return the Sphinx directive that documents a public name."""
    if kind != "data":
        return f".. auto{kind}:: {owner}.{name}{options}"
    module = importlib.import_module(owner)
    return f".. py:data:: {owner}.{name}\n\n   {summary(getattr(module, name), module, name)}"


def add_api(copy: Copy) -> None:
    """Add a page for each group of public names below docs/reference/api.md."""
    page = DOCS / "reference" / "api.md"
    names = []
    for title, members in groups():
        text = "\n\n".join(directive(*member) for member in members)
        copy.write(page.parent / "api" / f"{slug(title)}.md", f"# {title}\n\n```{{eval-rst}}\n{text}\n```\n")
        names.append(f"api/{slug(title)}")
    assert len(names) > len(MODULES)
    listing = "\n".join(f"- [{title}](api/{slug(title)}.md)" for title, _ in groups())
    text = copy.rewritten(page, page.read_text(encoding="utf-8"))
    copy.write(page, f"{text}\n## With arguments and fields\n\n{listing}\n\n{toctree(names)}")


def assemble(target: Path) -> None:
    """Write the source of the site into the empty folder ``target``."""
    copy = Copy(target)
    for page in PAGES:
        copy.page(page)
    add_api(copy)
    front = DOCS / "README.md"
    sources = copy.add_sources()
    index = ROOT / "sources.md"
    files = [path.relative_to(ROOT).with_suffix("").as_posix() for path in sources]
    listing = "\n".join(f"- [{name}]({name}.md)" for name in files)
    copy.write(index, f"# Source files\n\nThe files that the pages mention.\n\n{listing}\n\n{toctree(files)}")

    def entry(path: Path) -> str:
        return "/" + path.relative_to(ROOT).with_suffix("").as_posix()

    listed = [path for path in PAGES if path not in (front, ROOT / "README.md")]
    linked = {(front.parent / link.partition("#")[0]).resolve() for link in LINK.findall(front.read_text("utf-8"))}
    others = [entry(path) for path in listed if path not in linked and DOCS not in path.parents]
    trees = [*contents(front, entry), toctree(["/README", *others, "/sources"], "The repository")]
    text = re.sub(r"\]\((?!\w+:)([^()\s]+)\)", r"](docs/\1)", copy.rewritten(front, front.read_text(encoding="utf-8")))
    text = os.linesep.join([text.replace("](docs/../", "]("), *trees])
    copy.write(ROOT / "index.md", text)
    (target / "docs" / "README.md").unlink()
    for path in target.rglob("*.md"):  # links to the front page of the documentation
        path.write_text(
            re.sub(r"\]\(([^()\s]*)docs/README\.md", r"](\1index.md", path.read_text(encoding="utf-8")),
            encoding="utf-8",
        )


def main() -> int:
    """Build the site, and return Sphinx's exit code; warnings are errors."""
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    assemble(SOURCE)
    words = ["-b", "html", "-j", "auto", "-W", "--keep-going", "-q", "-c", str(Path(__file__).parent)]
    words += [str(SOURCE), str(SITE)]
    code = subprocess.run([sys.executable, "-m", "sphinx", *words], check=False).returncode
    if not code:
        print(f"{len(list(SITE.rglob('*.html')))} pages: {SITE / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
