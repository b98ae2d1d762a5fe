"""Sections of settings: merged, read from arguments, and filled into frozen dataclasses.

Plain data is what YAML can hold. Text in it is converted to the declared type of the setting, so that ``1e-3`` and
``true`` mean the same in a file and on the command line; see :mod:`recipe_core.settings.values`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from recipe_core.errors import ConfigError
from recipe_core.settings.plain import NotPlainError, plain
from recipe_core.settings.values import Reader

__all__ = ["fill", "flat", "from_words", "merge", "overrides", "plain"]

T = TypeVar("T")


def fill(kind: type[T], section: Mapping[str, Any], where: str, problems: list[str]) -> T | None:
    """Build the settings class ``kind`` from the plain data ``section``.

    Mistakes are appended to ``problems``, each as ``where.setting: expected ..., got ...``; the result is None then.
    """
    reader = Reader()
    try:
        settings: T = reader.read(kind, plain(section), where)
    except NotPlainError as error:
        reader.wrong.append(f"{where}: {error}")
    mistakes = [*reader.unknown, *reader.wrong, *reader.remote]
    problems += mistakes
    return None if mistakes else settings


def merge(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` updated with ``extra``. Naming another part (``use``) drops the settings of the old one."""
    merged = dict(base)
    for name, value in extra.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            same_part = value.get("use", old.get("use")) == old.get("use")
            merged[name] = merge(old, value) if same_part else dict(value)
        else:
            merged[name] = value
    return merged


def flat(tree: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of nested mappings with its path (``train.lr``, ``model.blocks.0.bias``).

    An empty mapping is a leaf.
    """
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{parent}{key}.")
        else:
            yield f"{parent}{key}", value


def from_words(kind: type[T], owner: str, words: Iterable[str], example: str = "") -> T:
    """Build the settings class ``kind`` from arguments ``setting=value``, as in ``example``; messages name ``owner``.

    Raises:
        ConfigError: one error names all mistakes.
    """
    problems: list[str] = []
    section = {}
    for word in words:
        setting, equals, value = word.partition("=")
        if equals and setting.isidentifier():
            section[setting] = value
        else:
            problems.append(f"{word!r}: expected setting=value{example and f', as in {example}'}")
    settings = fill(kind, section, owner, problems)
    if problems or settings is None:
        raise ConfigError.of(dict.fromkeys(_unsectioned(problem, owner) for problem in problems))
    return settings


def _unsectioned(problem: str, section: str) -> str:
    """Remove the section, which the user did not type, from a message."""
    head, colon, rest = problem.partition(": ")
    return head.replace(f"{section}.", "") + colon + rest


def overrides(words: Iterable[str], problems: list[str]) -> dict[str, Any]:
    """Return arguments like ``["train.steps=5", "layout=ddp"]`` as nested mappings; the last value of a setting counts.

    ``layout=ddp`` is short for ``layout.use=ddp``. Arguments of another form are appended to ``problems``.
    """
    sections: dict[str, Any] = {}
    for word in words:
        path, equals, text = word.partition("=")
        *parents, last = path.split(".") if "." in path else (path, "use")
        if not equals or not all(name.isidentifier() for name in (*parents, last)):
            problems.append(f"{word!r}: expected section.setting=value, as in train.steps=100 or layout=ddp")
            continue
        node = sections
        for name in parents:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        node[last] = text
    return sections
