"""The English text that CPython carries: ``help()``'s topics and the standard library's docstrings.

It is read from the source files, without importing any of them. So a recipe has real text to learn from, with no file
and no download.
"""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from recipe_core.errors import DataError

VERSION = 1
"""Raise it when a change here changes the documents: old caches are then left alone."""
_SHINGLE = 8
_SEED = 1234
_LEAST_CHARACTERS = 300_000
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields that hold statements, or what holds statements, in the order in which Python's nodes have them."""
_NO_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Other people's packages, and tests, which some distributions leave out and which say little in English."""


def documents(library: Path) -> list[str]:
    """The text of the Python library in ``library``: documents that share little text, in a shuffled, fixed order.

    Shuffled, so that every split of the documents looks like the whole. Of documents that repeat each other, only the
    longest stays, so that no split holds what another holds.

    Raises:
        DataError: there is too little text, as where only compiled files are installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the parser thinks of the library's source is not for our users
        candidates = {text for path in _modules(library) for text in _texts(path)}
    paragraphs = _without_repetitions(candidates)
    characters = sum(map(len, paragraphs))
    if characters < _LEAST_CHARACTERS:
        raise DataError(
            f"{library}: its .py files hold {characters:,} characters of English text, expected at least "
            f"{_LEAST_CHARACTERS:,}; install Python's library in source, or name token files of your own in data.files"
        )
    random.Random(_SEED).shuffle(paragraphs)
    return paragraphs


def _modules(library: Path) -> Iterator[Path]:
    for path in sorted(library.rglob("*.py")):
        if _NO_LIBRARY.isdisjoint(path.relative_to(library).parts):
            yield path


def _texts(path: Path) -> Iterator[str]:
    """The documents of one module: help topics, its own docstring, and each class or function with all inside."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # templates and the like; nobody needs every one of them
        return
    if path.parts[-2:] == ("pydoc_data", "topics.py"):
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    else:
        texts = [ast.get_docstring(tree) or ""]
        texts += ["\n\n".join(_docstrings(node)) for node in tree.body]
    for text in map(_cleaned, texts):
        if len(text.split()) >= _SHINGLE:
            yield text


def _docstrings(node: ast.AST) -> Iterator[str]:
    """The docstrings in a statement, outer ones first, in the order of ``ast.walk``.

    Definitions are statements: nine tenths of a tree, its expressions, need not be walked through.
    """
    waiting = deque([node])
    while waiting:
        inner = waiting.popleft()
        if isinstance(inner, _DEFINITIONS):
            yield ast.get_docstring(inner) or ""
        for field in _BLOCKS:
            block = getattr(inner, field, ())
            if isinstance(block, list):
                waiting.extend(block)


def _cleaned(text: str) -> str:
    """Its different paragraphs, without interactive sessions, underlines of headings and trailing blanks."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.expandtabs()):
        lines = [line.rstrip() for line in paragraph.split("\n")]
        # What follows a prompt, up to the next empty line, is its output.
        prompt = next((at for at, line in enumerate(lines) if line.lstrip().startswith(">>>")), len(lines))
        lines = [line for line in lines[:prompt] if not re.fullmatch(r"\s*[-=*~^#.+_]{3,}", line)]
        if any(lines):
            paragraphs.append("\n".join(lines))
    return "\n\n".join(dict.fromkeys(paragraphs)).strip()


def _without_repetitions(texts: Iterable[str]) -> list[str]:
    """Drop every text half of whose runs of eight words were seen in longer ones."""
    seen: set[int] = set()
    unique = []
    # The text itself breaks ties: a set has no order of its own.
    for text in sorted(texts, key=lambda t: (-len(t), t)):
        words = re.findall(r"\w+", text.lower())
        runs = {_number(words[at : at + _SHINGLE]) for at in range(max(1, len(words) - _SHINGLE + 1))}
        if 2 * len(runs & seen) < len(runs):
            unique.append(text)
            seen |= runs
    return unique


def _number(words: list[str]) -> int:
    # hash() of text differs from process to process; so that even a collision repeats, it is not used.
    return int.from_bytes(blake2b(" ".join(words).encode(), digest_size=8).digest(), "little")
