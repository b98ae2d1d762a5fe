"""Check the distributions in dist/, and write an index of them: ``python release/wheels.py DIST``.

A wheel holds all files of its package and no other, its licence and complete metadata. The index, ``DIST/simple``, is
what a package index serves (PEP 503), as plain files: ``pip install --extra-index-url file://DIST/simple NAME``.
"""

from __future__ import annotations

import hashlib
import html
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
REQUIRED = (
    "Author", "Classifier", "Description-Content-Type", "License-Expression", "License-File", "Name", "Requires-Dist",
    "Requires-Python", "Summary", "Version",
)  # fmt: skip
"""Fields that the metadata of every distribution has."""


def sources() -> dict[str, Path]:
    """The packages of this workspace, and where their sources are."""
    found = [path.parent for part in ("*", "plugins/*") for path in ROOT.glob(f"{part}/*/recipe_*/__init__.py")]
    return {path.name: path for path in found}


def files_of(package: Path) -> set[str]:
    """The files of a package, as a wheel names them."""
    found = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(package.parent).as_posix() for path in found if path.suffix not in {".so", ".pyd"}}


def wrong_content(wheel: Path, package: Path) -> Iterator[str]:
    """Files that a wheel lacks, or has and should not have, and what its metadata lack."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
        info = next(name.split("/")[0] for name in held if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        licence = archive.read(f"{info}/licenses/LICENSE") if f"{info}/licenses/LICENSE" in held else b""
        entries = archive.read(f"{info}/entry_points.txt").decode() if f"{info}/entry_points.txt" in held else ""
    compiled = {name for name in held if PurePosixPath(name).suffix in {".so", ".pyd"}}
    plain = {name for name in held - compiled if not name.startswith(f"{info}/")}
    expected = files_of(package)
    yield from (f"lacks {name}" for name in sorted(expected - plain))
    yield from (f"has {name}, which is no file of {package}" for name in sorted(plain - expected))
    if f"{package.name}/py.typed" not in held:
        yield "lacks py.typed"
    stubs = {name.removesuffix(".pyi") for name in expected if name.endswith(".pyi")}
    if stubs != {name.split(".")[0] for name in compiled}:
        yield f"has the compiled modules {sorted(compiled)}, and the stubs of {sorted(stubs)}"
    if (package / "plugin.py").exists() and "[recipe.plugins]" not in entries:
        yield "does not say that it is a plugin (entry point recipe.plugins)"
    if licence != (ROOT / "LICENSE").read_bytes():
        yield "its licence is not that of the repository"
    yield from wrong_metadata(metadata)


def wrong_metadata(metadata: Message) -> Iterator[str]:
    """Fields of a distribution's metadata that are missing."""
    yield from (f"METADATA lacks {name}" for name in REQUIRED if not metadata.get(name))
    if len(str(metadata.get_payload()).strip()) < 200:
        yield "METADATA lacks the text of README.md"


def wrong_source(archive: Path) -> Iterator[str]:
    """Files that a source distribution lacks; links in it, which lead nowhere once it is unpacked."""
    with tarfile.open(archive) as file:
        members = {member.name.partition("/")[2]: member for member in file.getmembers()}
    needed = ("LICENSE", "README.md", "pyproject.toml")
    yield from (f"lacks {name}" for name in needed if name not in members)
    yield from (f"{name} is a link" for name, member in members.items() if member.issym() or member.islnk())


def write_index(dist: Path) -> None:
    """Write ``dist/simple``: a page for each distribution, with the check sums of its files, and a page of them all."""
    pages: dict[str, list[str]] = {}
    for path in sorted([*dist.glob("*.whl"), *dist.glob("*.tar.gz")]):
        name = re.sub(r"[-_.]+", "-", re.split(r"-\d", path.name, maxsplit=1)[0]).lower()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        link = f'<a href="../../{html.escape(path.name)}#sha256={digest}" data-requires-python="&gt;=3.10">'
        pages.setdefault(name, []).append(f"{link}{html.escape(path.name)}</a><br>")
    pages_of_all = {"": [f'<a href="{name}/index.html">{name}</a><br>' for name in sorted(pages)], **pages}
    for name, lines in pages_of_all.items():
        folder = dist / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.html").write_text("\n".join(["<!doctype html>", *lines, ""]), encoding="utf-8")


def main(dist: Path) -> int:
    """Print what is wrong; the exit code says whether anything is."""
    problems, seen = [], set()
    for wheel in sorted(dist.glob("*.whl")):
        name = wheel.name.split("-")[0]
        seen.add(name)
        problems += [f"{wheel.name}: {problem}" for problem in wrong_content(wheel, sources()[name])]
    problems += [f"no wheel of {name}" for name in sorted(sources().keys() - seen)]
    for archive in sorted(dist.glob("*.tar.gz")):
        problems += [f"{archive.name}: {problem}" for problem in wrong_source(archive)]
    write_index(dist)
    for problem in problems:
        print(problem)
    print(f"{len(seen)} packages, {len(problems)} problems; index: {dist / 'simple'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
