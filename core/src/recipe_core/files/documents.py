"""Untrusted JSON and YAML, read with bounds on memory, depth and time. No torch here.

Python's ``json`` and PyYAML trust their input: a device is read without end, a thousand brackets raise a
RecursionError, and forty lines of YAML aliases expand to more nodes than fit into memory.
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
"""Maximum bytes of a text file; tokenizers have about 30 MB."""
MOST_YAML = 1 << 19
"""Maximum bytes of YAML, for which PyYAML takes about ten seconds if each word is a value."""
MOST_NODES = 100_000
"""Maximum values of a YAML file; those behind aliases count at each use."""

MOST_DIGITS = 4000
"""Maximum characters of an integer: Python formats no longer ones, not even in a message."""


class DocumentError(ValueError):
    """A file has invalid content; the caller adds the path to the message."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading in binary mode.

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
    """Return the content of a regular file of at most ``most`` bytes.

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
    """Return the text of a regular file of at most ``most`` bytes, in UTF-8.

    Raises:
        OSError: it cannot be read.
        DocumentError: see :func:`read_data`; or it is not UTF-8.
    """
    data = read_data(path, most)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(str(error)) from error


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: it cannot be read.
        DocumentError: it is not JSON, or nested too deeply.
    """
    return parse_json(read_text(path))


def parse_json(text: str | bytes | bytearray) -> Any:
    """Parse JSON.

    Raises:
        DocumentError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DocumentError("nested too deeply") from error
    except ValueError as error:
        raise DocumentError(str(error)) from error


def read_record(path: Path, kind: type[T]) -> T | None:
    """Return the dataclass of plain fields whose ``asdict`` a JSON file holds; None if it is missing or damaged."""
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
    """Return the content of a YAML file (plain values, lists and dicts).

    Raises:
        OSError: it cannot be read.
        DocumentError: it is not YAML, or larger or nested deeper than settings are.
    """
    return parse_yaml(read_text(path, MOST_YAML))


def parse_yaml(text: str, *, plain: bool = False) -> Any:
    """Parse YAML; ``plain``: scalars remain text.

    Raises:
        DocumentError: it is not YAML, or larger or nested deeper than settings are.
    """
    import yaml

    try:
        loader = (yaml.BaseLoader if plain else yaml.SafeLoader)(text)  # raises for characters that are not allowed
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
    except (ValueError, yaml.YAMLError) as error:  # an invalid date, an integer of a million digits
        raise DocumentError(" ".join(str(error).split())) from error
    except (LookupError, AttributeError, TypeError, ArithmeticError) as error:  # PyYAML's, for `!!bool 7`
        raise DocumentError(f"a value is not what its tag says ({type(error).__name__}: {error})") from error
    finally:
        loader.dispose()


def require_bounded(root: T, children: Callable[[T], Iterable[T]], most: int) -> None:
    """Refuse nested values that contain a cycle, or more than ``most`` values in a full traversal.

    A traversal visits a shared value once for each reference: thirty lists, each with the next one twice, are a
    billion.

    Raises:
        DocumentError: there is a cycle, or there are too many values.
        RecursionError: they are nested too deeply.
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
