"""Paths that settings name: with weights, by patterns, and in list files. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe_core.errors import DataError
from recipe_core.files import remote
from recipe_core.files.documents import DocumentError, read_text
from recipe_core.files.objects import ObjectPath, is_address
from recipe_core.files.objects.patterns import has_wildcard

LIST = "@"
"""Begins the name of a list file, which has a path in each line."""
_COMMENT = re.compile(r"(^|\s)#.*")


@dataclass(frozen=True)
class NamedPath:
    """A path, or a pattern of paths, as a setting or a list file names it."""

    text: str
    weight: float | None = None
    """Its share, relative to the others; None: it has none."""
    origin: str = ""
    """``LIST, line N`` where a list file names it."""
    folder: Path = Path()
    """Folder that a relative path starts from: that of the list file, or the current one."""

    def __str__(self) -> str:
        """The text, or its place in a list file."""
        return f"{self.origin}: {self.text}" if self.origin else self.text

    @property
    def is_list(self) -> bool:
        """True for a list file: ``@LIST``."""
        return self.text.startswith(LIST)

    @property
    def path(self) -> Path:
        """The path, pattern or list file."""
        return self.folder / Path(self.text.removeprefix(LIST)).expanduser()

    @property
    def address(self) -> ObjectPath | None:
        """The address, or its pattern, if the text is one of object storage.

        Raises:
            ConfigError: it is malformed.
        """
        return ObjectPath.parse(self.text) if is_address(self.text) else None

    @property
    def is_pattern(self) -> bool:
        """True if the text has a wildcard: ``*``, ``?`` or ``[``."""
        return has_wildcard(self.text)


def split_weights(texts: Sequence[str]) -> list[NamedPath]:
    """Read ``path`` and ``weight:path``, or weights and paths by turns, as Megatron takes them; no file is touched."""
    if pairs := _pairs(texts):
        return [NamedPath(path, weight) for weight, path in pairs]
    return [_split(text) for text in texts]


def read_lists(named: Sequence[NamedPath], *, objects: bool = False) -> list[NamedPath]:
    """Replace each list file by the paths that it names.

    A line is ``path``, ``weight:path``, ``weight path``, or several pairs of the latter; ``#`` begins a comment.
    Relative paths start from the folder of the list file. With ``objects``, a line may be an address of object storage.

    Raises:
        DataError: a list file cannot be read, names nothing, or names another list file or a remote place.
    """
    return [one for entry in named for one in (_list_entries(entry, objects) if entry.is_list else [entry])]


def problem_of(named: Sequence[NamedPath]) -> str:
    """Return what is wrong with some paths and their weights; empty if they fit together."""
    shown = ", ".join(map(str, named[:3])) + (f" and {len(named) - 3:,} more" if len(named) > 3 else "")
    weights = [one.weight for one in named if one.weight is not None]
    if any(not one.text for one in named):
        return f"expected paths, and one is empty: {shown}"
    if any(one.weight is not None and one.is_list for one in named):
        return f"a list file takes no weight, got {shown}; write the weights into its lines"
    if not all(0 < weight < float("inf") for weight in weights):
        return f"expected weights above 0, got {weights}"
    if weights and len(weights) < sum(not one.is_list for one in named):
        return f"some have a weight and some have none, got {shown}; write weight:path for all or for none"
    return ""


def matches(pattern: Path) -> list[Path]:
    """Return the files and folders that match a pattern, in order of names; hidden ones only if it names them.

    Raises:
        DataError: the pattern cannot be used.
    """
    root = Path(pattern.anchor)
    try:
        matching = sorted(root.glob(str(pattern.relative_to(root))))
    except (ValueError, OSError) as error:
        raise DataError(f"{pattern}: this pattern cannot be used ({error})") from error
    return [path for path in matching if not _is_hidden(path, pattern)]


def _is_hidden(path: Path, pattern: Path) -> bool:
    return any(part.startswith(".") and part not in pattern.parts for part in path.parts)


def _list_entries(entry: NamedPath, objects: bool) -> list[NamedPath]:
    path = entry.path
    try:
        lines = read_text(path).removeprefix("\ufeff").splitlines()
    except (OSError, DocumentError) as error:
        raise DataError(
            f"{path}: the list file cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    named = list(_of_lines(path, lines))
    problems = [f"{one}: {problem}" for one in named if (problem := _line_problem(one, objects))]
    if problems or not named:
        raise DataError("\n".join(problems) or f"{path}: the list file names nothing; write a path into each line")
    return named


def _of_lines(path: Path, lines: Sequence[str]) -> Iterator[NamedPath]:
    for number, line in enumerate(lines, 1):
        content = _COMMENT.sub("", line).strip()
        head, *rest = content.split(maxsplit=1) or [""]
        weight = _number(head)
        pairs = _pairs(content.split())
        if not pairs and rest and weight is not None:
            pairs = [(weight, rest[0])]
        for one in [NamedPath(text, share) for share, text in pairs] or ([_split(content)] if content else []):
            yield NamedPath(one.text, one.weight, f"{path}, line {number}", path.parent)


def _line_problem(one: NamedPath, objects: bool) -> str:
    if one.is_list:
        return "a list file names no other list file; copy its lines"
    if objects and is_address(one.text):
        return ""
    return remote(one.text) or ("" if one.text else "expected a path after the weight")


def _split(text: str) -> NamedPath:
    head, colon, tail = text.partition(":")
    weight = _number(head) if colon else None  # else the colon belongs to the path
    return NamedPath(text) if weight is None else NamedPath(tail.strip(), weight)


def _pairs(texts: Sequence[str]) -> list[tuple[float, str]]:
    # weights and paths by turns; empty if they are not
    weights = [weight for text in texts[::2] if (weight := _number(text)) is not None]
    paths = [text for text in texts[1::2] if _number(text) is None]
    return list(zip(weights, paths, strict=True)) if len(weights) == len(paths) == len(texts) / 2 else []


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
