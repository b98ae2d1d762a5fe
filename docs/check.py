"""Check the pages against the code: links, paths, commands, quoted files and messages, examples, maps, the picture."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import click
from markdown_it import MarkdownIt
from markdown_it.token import Token

from recipe_core.cli.main import cli
from recipe_core.cli.options import Invocation
from recipe_core.errors import RecipeError
from recipe_core.hooks.registry import Registry, installed, load
from recipe_core.settings.job import resolve

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = sorted(
    path
    for pattern in ("*.md", "core/*.md", "csrc/*.md", "plugins/*/*.md", "benchmarks/*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
)
SHELLS = {"bash", "console", "sh", "shell"}
CODE = ("core", "csrc", "plugins", "docs", "benchmarks", "tests")
"""Folders whose files pages may name in backticks."""
FOREIGN = {"megatron/training/arguments.py", "pretrain_gpt.py", "run_pretraining.py"}
"""Files of other projects that pages name in backticks."""
PICTURED = ("core/README.md", "docs/explanation.md")
"""Pages with the picture of the core."""


@dataclass(frozen=True)
class Place:
    """A line of a page."""

    page: Path
    line: int

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def tokens(page: Path) -> list[Token]:
    """Parse a page."""
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))


def fences(page: Path) -> Iterator[tuple[Place, str, str]]:
    """Yield every code block: its place, its info string, and the code."""
    for token in tokens(page):
        if token.type == "fence" and token.map:
            yield Place(page, token.map[0] + 1), token.info.strip(), token.content


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    elements = tokens(page)
    titles = [after.content for one, after in itertools.pairwise(elements) if one.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    """Yield relative links and pictures without a target."""
    for token in tokens(page):
        for child in token.children or ():
            target = str(child.attrGet("href") or child.attrGet("src") or "")
            if not target or re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            place = Place(page, token.map[0] + 1 if token.map else 1)
            if not path.exists():
                yield f"{place}: {target}: no such file"
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                yield f"{place}: {target}: no such heading"


def names(page: Path) -> Iterator[tuple[Place, str]]:
    """Yield the inline code of a page."""
    for token in tokens(page):
        for child in token.children or ():
            if child.type == "code_inline":
                yield Place(page, token.map[0] + 1 if token.map else 1), child.content


@cache
def files_of(folder: Path) -> frozenset[str]:
    """Return the paths of the files below ``folder``, with a leading slash, so that callers can match path suffixes."""
    folders = [ROOT / name for name in CODE] if folder == ROOT else [folder]
    found = [path for part in folders for path in part.rglob("*.*")] + list(folder.glob("*.*"))
    return frozenset(f"/{path.relative_to(folder).as_posix()}" for path in found)


def broken_names(page: Path) -> Iterator[str]:
    """Yield source files and dotted names of our packages, in inline code, that do not exist.

    A path may omit its leading folders: `train/run.py`. A file name on the page of a package must be in that package.
    """
    package = ROOT if DOCS in page.parents else page.parent
    for place, name in names(page):
        if re.fullmatch(r"[\w./-]+\.(py|cpp|hpp|toml)", name) and name not in FOREIGN:
            known = files_of(ROOT if "/" in name else package)
            if not any(path.endswith(f"/{name}") for path in known):
                yield f"{place}: `{name}`: no such file"
        elif re.fullmatch(r"recipe_\w+(\.\w+)+", name) and not is_defined(name):
            yield f"{place}: `{name}`: no such module, and no such name in one"


def defines(path: Path, name: str) -> bool:
    """Return True if a source file defines or imports a function, a method, a class or a constant ``name``."""
    pattern = rf"^\s*(def|class) {name}\b|^{name}\b|^ *from .* import .*\b{name}\b|^ +{name},$|\"{name}\""
    return re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def broken_stops(page: Path) -> Iterator[str]:
    """Yield stops of a walk through the code (a link to a file, then a name in backticks) whose file lacks the name."""
    text = page.read_text(encoding="utf-8")
    for stop in re.finditer(r"\]\(([^()\s]+\.py)\)\s+`(\w+)`", text):
        path = page.parent / stop[1]
        if path.is_file() and not defines(path, stop[2]):
            yield f"{Place(page, text.count(chr(10), 0, stop.start()) + 1)}: {stop[1]} defines no `{stop[2]}`"


def is_defined(name: str) -> bool:
    """Return True if a dotted name is a module of this repository, or a name that one defines."""
    for parts in range(name.count(".") + 1, 0, -1):
        words = name.split(".")
        module, rest = "/" + "/".join(words[:parts]), words[parts:]
        endings = tuple(f"/{source}{module}{end}" for source in ("src", "python") for end in (".py", "/__init__.py"))
        paths = [path for path in files_of(ROOT) if path.endswith(endings)]
        if paths:
            return all(defines(ROOT / paths[0].lstrip("/"), word) for word in rest[:1])
    return False


def rooms() -> dict[str, int]:
    """Return the layers of the core with their depth, from import-linter's contract in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r'containers = \["recipe_core"\].*?\nlayers = \[\n(.*?)\n\]', text, re.DOTALL)
    assert layers is not None
    lines = layers[1].splitlines()
    return {name: depth for depth, line in enumerate(lines) for name in re.findall(r"\w+", line)}


def wrong_maps() -> Iterator[str]:
    """Yield files and folders that the docstring of a package lists, but that do not exist."""
    for init in itertools.chain(*(ROOT.glob(f"{part}/**/__init__.py") for part in ("core/src", "plugins/*/src"))):
        text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        for name in re.findall(r"``(\w+\.py|\w+/)``", text):
            if not (init.parent / name).exists():
                yield f"{init.relative_to(ROOT)}: {name}: no such file or folder beside it"


def wrong_pictures() -> Iterator[str]:
    """Yield pictures that differ between pages, missing or unknown rooms, and arrows that do not point downwards."""
    first, *others = ["".join(text for _, info, text in fences(ROOT / page) if info == "mermaid") for page in PICTURED]
    if any(other != first for other in others):
        yield f"the pictures on {' and '.join(PICTURED)} differ"
    known, drawn = rooms(), set(re.findall(r"^ *(\w+)\[", first, re.MULTILINE))
    yield from (f"{PICTURED[0]}: the picture lacks {name}" for name in sorted(known.keys() - drawn))
    yield from (f"{PICTURED[0]}: the picture has {name}, which is no layer" for name in sorted(drawn - known.keys()))
    for arrow in re.finditer(r"^ *(\w+) --> ([\w &]+)$", first, re.MULTILINE):
        for target in arrow[2].split(" & "):
            if known.get(arrow[1], 0) >= known.get(target, 0):
                yield f"{PICTURED[0]}: the arrow from {arrow[1]} to {target} does not point to a lower layer"


def unlisted() -> Iterator[str]:
    """Yield pages of docs/ that the table of contents, docs/README.md, does not list."""
    front = DOCS / "README.md"
    links = (child.attrGet("href") for token in tokens(front) for child in token.children or ())
    listed = {(DOCS / str(link).partition("#")[0]).resolve() for link in links if link}
    for page in PAGES:
        if DOCS in page.parents and page != front and page not in listed:
            yield f"{front.relative_to(ROOT)}: has no link to {page.relative_to(DOCS)}"


def commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each ``recipe`` command in a block of shell commands."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if "recipe" in words:
            rest = words[words.index("recipe") + 1 :]
            ends = [i for i, word in enumerate(rest) if word in {"&&", ";", "|", ">", "&"}]
            yield rest[: ends[0]] if ends else rest


def wrong_commands(page: Path) -> Iterator[str]:
    """Yield ``recipe`` commands that the command line would refuse, including their settings."""
    for place, info, text in fences(page):
        for words in commands(text) if info in SHELLS else ():
            try:
                understand(words)
            except (click.ClickException, RecipeError) as error:
                message = error.format_message() if isinstance(error, click.ClickException) else str(error)
                yield f"{place}: recipe {shlex.join(words)}: {message}"


def understand(words: list[str]) -> None:
    """Parse a ``recipe`` command and look up every name and setting in it, without running it."""
    name, command, rest = cli.resolve_command(click.Context(cli), words)
    assert command is not None
    given = command.make_context(name, rest, obj=Invocation()).params.get("arguments", ())
    targets = [word for word in given if "=" not in word]
    # An earlier command of the page made a .yaml file or a run folder.
    if name in {"show", "check", "run"} and targets and not re.search(r"\.yaml$|/", targets[0]):
        resolve(registry(), targets[0], [word for word in given if "=" in word])


@cache
def registry() -> Registry:
    """Load installed plugins, and those of this repository and of docs/examples from their sources."""
    plugins = dict(installed())
    patterns = ("plugins/*/src/recipe_*/plugin.py", "docs/examples/*/src/recipe_*/plugin.py")
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        sys.path.append(str(path.parents[1]))
        plugins.setdefault(
            path.parent.name.removeprefix("recipe_"), partial(import_module, f"{path.parent.name}.plugin")
        )
    return load(plugins.items())


def wrong_code(page: Path) -> Iterator[str]:
    """Yield blocks that differ from the file that they quote (named after the language), and examples that fail.

    Outside docs/, examples may need files that do not exist, so they are only compiled.
    """
    examples = []
    for place, info, text in fences(page):
        language, _, name = info.partition(" ")
        if name and text not in (DOCS / name).read_text(encoding="utf-8"):
            yield f"{place}: differs from {name}"
        elif language == "python" and not name:
            try:
                compile(text, str(place), "exec")
                examples.append(text)
            except SyntaxError as error:
                yield f"{place}: {error.msg}: {error.text}"
    if examples and DOCS in page.parents:
        with tempfile.TemporaryDirectory() as folder:
            call = [sys.executable, "-c", "\n".join(examples)]
            done = subprocess.run(call, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            yield f"{Place(page, 1)}: its examples do not run:\n{done.stderr}"


@cache
def messages() -> tuple[str, ...]:
    """Return the string constants of our sources; in f-strings, a line break replaces each variable part."""
    found = [(ROOT / "csrc" / "CMakeLists.txt").read_text(encoding="utf-8")]
    for path in itertools.chain(*(ROOT.glob(f"{part}/src/**/*.py") for part in ("core", "plugins/*"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            words = [part.value if isinstance(part, ast.Constant) else "\n" for part in parts]
            if all(isinstance(word, str) for word in words) and any(isinstance(p, ast.Constant) for p in parts):
                found.append("".join(map(str, words)))
    return tuple(found)


def wrong_quotes(page: Path) -> Iterator[str]:
    """Yield messages in the first column of a table "you see" that no source contains; ``...`` matches any text."""
    quoting = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        quoting = line.startswith("| you see |") or (quoting and line.startswith("|"))
        first = re.split(r"(?<!\\)\|", line)[1] if quoting else ""
        for quote in re.findall(r"`([^`]+)`", first):
            pattern = re.compile(".*".join(map(re.escape, re.split(r" ?\.\.\. ?", quote))), re.DOTALL)
            if not any(pattern.search(text) for text in messages()):
                yield f"{Place(page, number)}: `{quote}`: no source says so"


def main() -> int:
    """Print all problems, and return the exit code."""
    checks = (broken_links, broken_names, broken_stops, wrong_commands, wrong_code, wrong_quotes)
    problems = [p for page in PAGES for check in checks for p in check(page)]
    problems += [*wrong_maps(), *wrong_pictures(), *unlisted()]
    for problem in problems:
        print(problem)
    print(f"{len(PAGES)} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
