"""JSON and YAML that may come from anywhere, read with bounds on memory, depth and time. No torch here.

Python's ``json`` and PyYAML trust their input: a device in the place of a file is read without end, a thousand brackets
end in a RecursionError, and forty lines of YAML aliases expand to more nodes than any memory holds.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, get_type_hints

if TYPE_CHECKING:
    from yaml import Node

T = TypeVar("T")
MOST_TEXT = 256 << 20
"""Bytes of a text file at most; tokenizers have some 30 MB."""
MOST_YAML = 1 << 19
"""Bytes of YAML at most: PyYAML takes some ten seconds of processor time for them where each word is a value."""
MOST_NODES = 100_000
"""Values of a YAML file at most, those behind aliases counted wherever they are used."""

MOST_DIGITS = 4000
"""Characters of an integer at most: Python writes no longer ones, not even into a message."""


class DocumentError(ValueError):
    """A file cannot be what is expected; the message leaves it to the caller to name the file."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises:
        OSError: it cannot be opened.
        DocumentError: it is a device, a pipe or a folder.
    """
    # A pipe without a writer would block in open().
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DocumentError("expected a regular file")
    return file


def read_data(path: Path, most: int = MOST_TEXT) -> bytes:
    """The content of a regular file of at most ``most`` bytes.

    Raises:
        OSError: it cannot be read.
        DocumentError: it is a device, a pipe or a folder, or is larger.
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise DocumentError(f"more than {most:,} bytes, which such a file never has")
    return data


def read_text(path: Path, most: int = MOST_TEXT) -> str:
    """The text of a regular file of at most ``most`` bytes, in UTF-8.

    Raises:
        OSError: it cannot be read.
        DocumentError: as :func:`read_data`, or it is not in UTF-8.
    """
    data = read_data(path, most)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(str(error)) from error


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        OSError: it cannot be read.
        DocumentError: it is no JSON, or nested too deeply.
    """
    return parse_json(read_text(path))


def parse_json(text: str | bytes | bytearray) -> Any:
    """The value that JSON describes.

    Raises:
        DocumentError: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DocumentError("nested too deeply") from error
    except ValueError as error:
        raise DocumentError(str(error)) from error


def read_record(path: Path, kind: type[T]) -> T | None:
    """The dataclass of plain fields whose ``asdict`` a JSON file holds; None where there is none, or a damaged one."""
    try:
        content = read_json(path)
        record = kind(**content)
    except (OSError, DocumentError, TypeError):
        return None
    hints = get_type_hints(kind)
    values = {name: getattr(record, name) for name in content}
    finite = all(math.isfinite(value) for value in values.values() if isinstance(value, float))
    return record if finite and all(isinstance(value, hints[name]) for name, value in values.items()) else None


def read_yaml(path: Path) -> Any:
    """The content of a YAML file (plain values, lists and dicts).

    Raises:
        OSError: it cannot be read.
        DocumentError: it is no YAML, or larger or nested deeper than settings are.
    """
    return parse_yaml(read_text(path, MOST_YAML))


def parse_yaml(text: str, *, plain: bool = False) -> Any:
    """The value that YAML describes; ``plain``: with everything that is no list and no dict as text.

    Raises:
        DocumentError: it is no YAML, or larger or nested deeper than settings are.
    """
    import yaml

    try:
        loader = (yaml.BaseLoader if plain else yaml.SafeLoader)(
            text
        )  # which looks for characters that are not allowed
    except yaml.YAMLError as error:
        raise DocumentError(" ".join(str(error).split())) from error
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        require_bounded(node, _children, MOST_NODES)
        return loader.construct_document(node)
    except RecursionError as error:
        raise DocumentError("nested too deeply") from error
    except (ValueError, yaml.YAMLError) as error:  # a date that is none, an integer of a million digits
        raise DocumentError(" ".join(str(error).split())) from error
    except (LookupError, AttributeError, TypeError, ArithmeticError) as error:  # PyYAML's, of `!!bool 7` for one
        raise DocumentError(f"a value is not what its tag says ({type(error).__name__}: {error})") from error
    finally:
        loader.dispose()


def require_bounded(root: T, children: Callable[[T], Iterable[T]], most: int) -> None:
    """Refuse nested values of which one contains itself, or that are more than ``most`` when each is walked to.

    A value that several others refer to is in memory once, and is walked through once for each of them: thirty lists,
    each with the next one twice, are a billion.

    Raises:
        DocumentError: it is so.
        RecursionError: it is nested too deeply.
    """
    counts: dict[int, int] = {}
    above: set[int] = set()

    def count(value: T) -> int:
        key = id(value)
        if key in above:
            raise DocumentError("it contains itself")
        if key not in counts:
            above.add(key)
            counts[key] = 1 + sum(count(child) for child in children(value))
            above.remove(key)
            if counts[key] > most:
                raise DocumentError(f"more than {most:,} values, those that stand in several places included")
        return counts[key]

    count(root)


def _children(node: Node) -> list[Node]:
    if node.tag.endswith(":int") and len(node.value) > MOST_DIGITS:
        raise DocumentError(f"line {node.start_mark.line + 1} has a number of {len(node.value):,} digits")
    if node.tag.endswith(":binary"):
        raise DocumentError(f"line {node.start_mark.line + 1} has bytes, and settings are text")
    if isinstance(node.value, str):
        return []
    return [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
