"""Check the documentation against the code: links, commands, quoted files, examples, and the generated reference."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from markdown_it import MarkdownIt
from markdown_it.token import Token

from recipe_core.cli.main import Line, cli
from recipe_core.errors import RecipeError
from recipe_core.hooks.registry import load
from recipe_core.settings.job import resolve

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = sorted(
    path
    for pattern in ("*.md", "core/*.md", "csrc/*.md", "plugins/*/*.md", "benchmarks/*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
)
SHELLS = {"bash", "console", "sh", "shell"}


@dataclass(frozen=True)
class Place:
    """A line of a page."""

    page: Path
    line: int

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def tokens(page: Path) -> list[Token]:
    """The page as a list of its elements."""
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))


def fences(page: Path) -> Iterator[tuple[Place, str, str]]:
    """Every block of code: where it starts, what is said behind its backticks, and the code."""
    for token in tokens(page):
        if token.type == "fence" and token.map:
            yield Place(page, token.map[0] + 1), token.info.strip(), token.content


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    elements = tokens(page)
    titles = [after.content for one, after in itertools.pairwise(elements) if one.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    """Relative links and pictures that lead nowhere."""
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


def commands(text: str) -> Iterator[list[str]]:
    """The calls of ``recipe`` in a block of shell commands, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if "recipe" in words:
            rest = words[words.index("recipe") + 1 :]
            ends = [i for i, word in enumerate(rest) if word in {"&&", ";", "|", ">", "&"}]
            yield rest[: ends[0]] if ends else rest


def wrong_commands(page: Path) -> Iterator[str]:
    """Calls of ``recipe`` that the command line would refuse, their settings included."""
    for place, info, text in fences(page):
        for words in commands(text) if info in SHELLS else ():
            try:
                understand(words)
            except (click.ClickException, RecipeError) as error:
                message = error.format_message() if isinstance(error, click.ClickException) else str(error)
                yield f"{place}: recipe {shlex.join(words)}: {message}"


def understand(words: list[str]) -> None:
    """Read a call as ``recipe`` would, and look up every name and setting in it, without doing what it says."""
    name, command, rest = cli.resolve_command(click.Context(cli), words)
    assert command is not None
    given = command.make_context(name, rest, obj=Line()).params.get("words", ())
    targets = [word for word in given if "=" not in word]
    # A .yaml is a file that an earlier command of the page made.
    if name in {"show", "check", "run"} and targets and not targets[0].endswith(".yaml"):
        resolve(load(), targets[0], [word for word in given if "=" in word])


def wrong_code(page: Path) -> Iterator[str]:
    """Blocks that quote a file (named behind the language) and differ from it, and examples that do not run.

    Outside of docs/, where examples may need files that are not there, it is enough that they can be compiled.
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


def main() -> int:
    """Print what is wrong; the exit code says whether anything is."""
    problems = [p for page in PAGES for check in (broken_links, wrong_commands, wrong_code) for p in check(page)]
    for problem in problems:
        print(problem)
    print(f"{len(PAGES)} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
