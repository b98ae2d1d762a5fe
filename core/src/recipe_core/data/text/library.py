"""English text in CPython's library: the topics of ``help()`` and the docstrings of the standard library.

It is read from the source files, without importing them, so a recipe can train on real text without any file or
download.
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
"""Increment it when a change here changes the documents, so that old caches are not used."""
_SHINGLE = 8
_SEED = 1234
_LEAST_CHARACTERS = 300_000
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields with statements, or with nodes that contain statements, in the order of Python's nodes."""
_NO_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Third-party packages, and tests, which some distributions omit and which contain little English."""


def documents(library: Path) -> list[str]:
    """Return the documents of the Python library in ``library``, without near-duplicates, in a fixed shuffled order.

    The order is shuffled so that splits are alike. Of documents that repeat each other only the longest is kept, so
    that splits do not overlap.

    Raises:
        DataError: there is too little text, for example if only compiled files are installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings on the library's source do not concern users
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
    """The documents of a module: help topics, its docstring, and each class or function with its members."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # templates and the like
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
    """The docstrings in a statement, in the order of ``ast.walk``.

    Definitions are statements, so expressions, nine tenths of a tree, need not be visited.
    """
    queue = deque([node])
    while queue:
        inner = queue.popleft()
        if isinstance(inner, _DEFINITIONS):
            yield ast.get_docstring(inner) or ""
        for field in _BLOCKS:
            block = getattr(inner, field, ())
            if isinstance(block, list):
                queue.extend(block)


def _cleaned(text: str) -> str:
    """Distinct paragraphs, without interactive sessions, underlines of headings and trailing blanks."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.expandtabs()):
        lines = [line.rstrip() for line in paragraph.split("\n")]
        # Lines after a prompt, up to the next empty line, are its output.
        prompt = next((at for at, line in enumerate(lines) if line.lstrip().startswith(">>>")), len(lines))
        lines = [line for line in lines[:prompt] if not re.fullmatch(r"\s*[-=*~^#.+_]{3,}", line)]
        if any(lines):
            paragraphs.append("\n".join(lines))
    return "\n\n".join(dict.fromkeys(paragraphs)).strip()


def _without_repetitions(texts: Iterable[str]) -> list[str]:
    """Drop each text if at least half of its runs of eight words occur in longer texts."""
    seen: set[int] = set()
    unique = []
    # The text itself breaks ties, since a set has no order.
    for text in sorted(texts, key=lambda t: (-len(t), t)):
        words = re.findall(r"\w+", text.lower())
        runs = {_run_hash(words[at : at + _SHINGLE]) for at in range(max(1, len(words) - _SHINGLE + 1))}
        if 2 * len(runs & seen) < len(runs):
            unique.append(text)
            seen |= runs
    return unique


def _run_hash(words: list[str]) -> int:
    # Not hash(), which differs between processes: even collisions must be reproducible.
    return int.from_bytes(blake2b(" ".join(words).encode(), digest_size=8).digest(), "little")
