"""Check the words of sources and pages: plain English, docstrings that say something, one name for one thing.

``python checks/language.py`` prints ``file:line: phrase: what to write instead`` and exits with 1 if there is any. Read
as prose are docstrings, strings below a name, comments, and pages; code in them and "quoted words" are exempt.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("core/src", "csrc/python", "plugins/*/src")
OTHERS = ("core/tests", "csrc/tests", "plugins/*/tests", "tests", "benchmarks", "checks", "docs", "release")
PAGES = ("*.md", "core/*.md", "core/src/**/*.md", "csrc/*.md", "plugins/*/*.md", "benchmarks/*.md", "docs/**/*.md")
GLOSSARY = "docs/reference/glossary.md"
FROZEN = re.compile(r"/frozen_api_\d+/")
"""Files that stay as they are."""
TEMPLATES = "/cli/plugin/templates/"
"""Beginnings of plugins, which never meet."""

RIDDLES = {
    "whoever": "name the reader or the caller",
    "nobody(?!/)": "say who does not, or use the passive: `not read`",
    "(is|are|was|were|be|been|being) told(?! apart)|told of": "`gets`, `is notified of`, `is printed`",
    r"so many(?!( \w+)? that\b)": "name the number: `N`, `that many`, `at most this many`",
    "so-manieth": "`every N-th`",
    r"(go|goes|going|went|gone) on(?! (an?|its|the|top)\b)": "`continue`, `resume`",
    "(lie|lies|lay|lying) beside": "`next to`, `in the same folder as`",
    "let be": "`leave unchanged`, `ignore`",
    "be had": "`be available`, `be loaded`",
    "in the place of": "`instead of`",
    "mend(ed|ing|s)?": "`fix`",
    "way out": "`how to fix it`",
    "left no word": "`exited without reporting an error`",
}
"""Phrases that a reader has to puzzle out, as patterns, and the plain words for them."""
SAID = {"left no word": RIDDLES["left no word"], "mend the": "`fix the`", "evaluates never": "`disables evaluation`"}
"""Those that messages avoid, too. Programs and tests may rely on the other words of a message."""
OPENING = re.compile(r"(So|Told|What|Whether|Whoever)\b")
"""Words that begin no docstring: its first line is a noun phrase or an imperative."""
SMALL = re.findall(
    r"\w+",
    "a all an and any are as at be build by compute for from get give given has have if in into is it its list make "
    "none of on one or return set that the their them there these they this those to was were which with yield",
)
"""Words that say nothing about a function beyond its name and its types."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """A phrase to change, and what to write instead."""

    path: str
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase}: {self.instead}"


class Definition(NamedTuple):
    """A class, the line that defines it, and the name by which it is imported."""

    path: str
    line: int
    name: str
    dotted: str


def prose(text: str) -> str:
    """Drop code, targets of links, quotations, indents and signs of comments; lines keep their numbers."""
    paragraph = r"(?:(?!\n\s*\n).)+?"
    blocks = (r"^ *(`{3,}).*?^ *\1", r"(?<=::)\n\s*\n(?: {4}[^\n]*(?:\n|\Z)|\s*\n)+")
    inline = (rf"(`+){paragraph}\1", r"(?<=\])\([^)\s]*\)", rf'(?<!\w)"{paragraph}"', r"(?<!\w)'[^'\n]+'(?!\w)")
    for pattern in (*blocks, *inline):
        text = re.sub(pattern, lambda match: "•" + "\n" * match[0].count("\n"), text, flags=re.M | re.DOTALL)
    return re.sub(r"^[^\S\n]*#*[^\S\n]*", "", text, flags=re.M)


def riddles(path: str, line: int, text: str, phrases: Mapping[str, str] = RIDDLES) -> Iterator[Finding]:
    """Find phrases in ``text``, which begins on ``line``; a phrase may go over the end of a line."""
    for phrase, plain in phrases.items():
        pattern = rf"(?<!\w)(?:{phrase})\b".replace(" ", "[ \n]")
        for match in re.finditer(pattern, text, re.IGNORECASE):
            yield Finding(path, line + text.count("\n", 0, match.start()), " ".join(match[0].split()), plain)


def comments(text: str) -> str:
    """Return a source with nothing but its comments, each on its line."""
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            lines[token.start[0] - 1] = token.string if alone else f"{token.string} •"  # the next line is another
    return "\n".join(lines)


def words(text: str) -> set[str]:
    """Return the words and signs of a text or a name, without endings such as the plural's, and without small words."""
    parts = re.findall(r"(?<!')[a-z]+|[\d@+/<>]", re.sub(r"(?<=[a-z\d])(?=[A-Z])", " ", text).lower())
    return {re.sub(r"(?<=\w{3})(ing|ed|es|e|s)$", "", part) for part in parts if part not in SMALL}


def private_functions(node: ast.AST, nested: bool = False) -> Iterator[Function]:
    """Yield the functions below ``node`` that begin with an underscore, and those inside of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if nested or re.match(r"_(?!_)", child.name):
                yield child
            yield from private_functions(child, nested=True)
        else:
            yield from private_functions(child, nested and not isinstance(child, ast.ClassDef))


def is_trivial(function: Function) -> bool:
    """Return True where each word of a docstring of one line is in the name, the arguments or the returned type."""
    text = ast.get_docstring(function) or "\n"
    names = [function.name, *(node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg))]
    returned = ast.unparse(function.returns) if function.returns else ""
    return "\n" not in text and words(text) <= words(" ".join([*names, returned]))


def check_source(path: str, text: str, *, packaged: bool = False) -> Iterator[Finding]:
    """Check the comments and docstrings of a source, and its messages if it is part of a package."""
    yield from riddles(path, 1, prose(comments(text)))
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if node in docstrings:
            yield from riddles(path, node.lineno, prose(node.value))
            if opening := OPENING.match(node.value):
                yield Finding(path, node.lineno, opening[0], "begin the docstring with a noun phrase or an imperative")
        elif packaged:
            yield from riddles(path, node.lineno, node.value, SAID)
    for function in filter(is_trivial, private_functions(tree)):
        yield Finding(path, function.lineno, function.name, "drop the docstring, it only repeats the signature")


def public_classes(path: str, node: ast.AST) -> Iterator[Definition]:
    """Yield the public classes below ``node``, without those inside of functions."""
    module = re.sub(r"^.*?/(src|python)/|(/__init__)?\.py$", "", path).replace("/", ".")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield Definition(path, child.lineno, child.name, f"{module}.{child.name}")
        if not isinstance(child, Function):
            yield from public_classes(path, child)


def check_classes(classes: Sequence[Definition], glossary: str) -> Iterator[Finding]:
    """Report classes of one name, and those called like a term of the glossary that lives elsewhere."""
    rows = re.findall(r"^\| (.+?) \|.*\| (.*) \|$", glossary, re.MULTILINE)
    homes = {re.sub(r"\(.*|\W", "", term).lower(): home for terms, home in rows for term in terms.split(",")}
    for path, line, name, dotted in classes:
        if others := [one.dotted for one in classes if one.name == name and one.path != path]:
            yield Finding(path, line, f"class {name}", f"rename it, or {' and '.join(others)}")
        home = homes.get(name.lower())
        if home is not None and f"`{dotted}`" not in home:
            yield Finding(path, line, f"class {name}", f"rename it: a term of {GLOSSARY} for {home}")


def texts(*patterns: str) -> Iterator[tuple[str, str]]:
    """Yield path and content of the files that match ``patterns``."""
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        if not FROZEN.search(name):
            yield name, path.read_text(encoding="utf-8")


def main() -> int:
    """Print the findings; the exit code says whether there are any."""
    findings: list[Finding] = []
    classes: list[Definition] = []
    for path, text in texts(*(f"{folder}/**/*.py" for folder in PACKAGES)):
        findings += check_source(path, text, packaged=True)
        if TEMPLATES not in path:
            classes += public_classes(path, ast.parse(text))
    for path, text in texts("*.py", *(f"{folder}/**/*.py" for folder in OTHERS)):
        findings += check_source(path, text)
    for path, text in texts(*PAGES):
        findings += riddles(path, 1, prose(text))
    findings += check_classes(classes, (ROOT / GLOSSARY).read_text(encoding="utf-8"))
    for finding in sorted(findings):
        print(finding)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
