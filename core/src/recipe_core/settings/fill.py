"""Settings: frozen dataclasses, filled from plain data and from ``section.setting=value`` words.

Plain data is what YAML can hold. Text in it becomes what the setting is declared to be, so that ``1e-3`` and ``true``
mean the same in a file and on the command line. The checking is pydantic's, in its strict JSON mode;
:mod:`recipe_core.settings.direct` spares its import where nothing is wrong.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, TypeVar

from recipe_core.errors import ConfigError, did_you_mean
from recipe_core.files import remote
from recipe_core.settings import direct
from recipe_core.settings.text import read

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails

T = TypeVar("T")

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "settings ({name: value})",
    "dataclass_type": "settings ({name: value})",
}
"""What pydantic's types of errors mean to somebody who writes YAML."""


class NotPlainError(TypeError):
    """A value that YAML cannot hold."""


def fill(kind: type[T], given: Mapping[str, Any], where: str, problems: list[str]) -> T | None:
    """Build the settings class ``kind`` from the plain data ``given``.

    Everything wrong with them is appended to ``problems``, each as ``where.setting: expected ..., got ...``, and the
    result is None then.
    """
    found: list[str] = []
    try:
        data = read(kind, plain(given), where, found)
    except NotPlainError as error:
        problems.append(f"{where}: {error}")
        return None
    settings = direct.build(kind, data, plain)
    if settings is None:
        settings = _judged(kind, data, where, found)
    found += _remote_settings(kind, data, where)
    problems += found
    return None if found else settings


def _judged(kind: type[T], data: Any, where: str, problems: list[str]) -> T | None:
    """What pydantic makes of ``data``; what it finds wrong is appended to ``problems``."""
    from pydantic import ValidationError
    from pydantic_core import PydanticSerializationError, to_json

    settings: T | None = None
    try:
        adapter = _adapter(kind)
        for _ in range(2):  # the second time checks the defaults too, and gives them their declared types
            (settings,) = adapter.validate_json(to_json([data], inf_nan_mode="constants"))
            data = plain(settings)
    except ValidationError as error:
        problems += _explain(error, data, where)
    except PydanticSerializationError as error:
        problems.append(f"{where}: expected what YAML can hold ({error})")
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:  # a __post_init__ that hoped for more
        problems.append(f"{where}: {kind.__name__} takes no such settings ({type(error).__name__}: {error})")
    return settings


def _remote_settings(kind: type, data: Any, where: str) -> Iterator[str]:
    """A message for each text with ``://`` in it, as remote addresses have: settings name places on this machine.

    A setting that means another address says so: ``field(metadata={"remote": True})``.
    """
    allowed = {field.name for field in dataclasses.fields(kind) if field.metadata.get("remote")}
    for name, value in data.items() if isinstance(data, Mapping) else ():
        if name not in allowed:
            yield from _remote_places(value, f"{where}.{name}")


def _remote_places(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _remote_places(item, f"{where}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from _remote_places(item, where)
    elif isinstance(value, str) and "://" in value:
        yield f"{where}: {remote(value)}"


def _adapter(kind: Any) -> TypeAdapter[tuple[Any]]:
    from pydantic import ConfigDict, TypeAdapter

    # Pydantic takes no configuration together with a dataclass, but a tuple hands its own down to the dataclass in it.
    inside: Any = tuple[kind]
    return TypeAdapter(inside, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))


def _explain(error: ValidationError, data: Any, where: str) -> list[str]:
    """One message for everything that pydantic refuses, in the order of the settings."""
    messages: list[str] = []
    refused: dict[str, tuple[Any, list[ErrorDetails]]] = {}
    for detail in error.errors(include_url=False):
        path, value = _locate(detail, data, where)
        if detail["type"] in ("value_error", "assertion_error"):  # from __post_init__
            messages += [_under(path, line) for line in str(detail["ctx"]["error"]).splitlines()]
        else:
            refused.setdefault(path, (value, []))[1].append(detail)
    return [f"{path}: {_expected(details, value)}" for path, (value, details) in refused.items()] + messages


def _locate(detail: ErrorDetails, data: Any, where: str) -> tuple[str, Any]:
    """The path of the setting that an error is about, and its value.

    Pydantic's own location also names the members of a union, and for a missing item an index past the end.
    """
    for step in detail["loc"][1:]:
        if isinstance(data, Mapping) and (step in data or detail["type"] == "missing"):
            where, data = f"{where}.{step}", data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            where, data = f"{where}[{step}]", data[step]
        else:
            break
    return where, data


def _under(path: str, line: str) -> str:
    """A line of a ``__post_init__`` with the path before its settings: ``train.warmup_steps: expected ...``."""
    names = re.match(r"\w+(?:, \w+)*(?=: )", line)
    if names is None:
        return f"{path}: {line}"
    return ", ".join(f"{path}.{name}" for name in names.group().split(", ")) + line[names.end() :]


def _expected(details: list[ErrorDetails], value: Any) -> str:
    """``expected ..., got ...`` from what pydantic says about one setting; a union has several ways to be wrong."""
    kinds = [detail["type"] for detail in details]
    if kinds[0] == "missing":
        last = details[-1]["loc"][-1]
        return "is missing, and has no default" if isinstance(last, str) else f"{_count(last + 1)}, got {_shown(value)}"
    if kinds[0] == "too_long":
        return f"{_count(details[0]['ctx']['max_length'])}, got {_shown(value)}"
    wanted = dict.fromkeys(_wanted(detail) for detail in details)
    near = ""
    if "literal_error" in kinds and isinstance(value, str):
        near = did_you_mean(value, re.findall(r"'([^']*)'", " ".join(wanted)))
    return f"expected {' or '.join(wanted)}, got {_shown(value)}{near}"


def _count(number: int) -> str:
    return f"expected {number} value{'s' if number != 1 else ''}"


def _wanted(detail: ErrorDetails) -> str:
    if detail["type"] in ("literal_error", "enum"):
        return str(detail["ctx"]["expected"])
    message = detail["msg"]
    return _EXPECTED.get(detail["type"]) or message.removeprefix("Input should be ").removeprefix("Value should be ")


def _shown(value: Any) -> str:
    """A value as it would stand in a file, cut where it is long."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 100 else f"{text[:97]}..."


def plain(value: Any) -> Any:
    """Dataclasses, paths, tuples and the like as plain data, which YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Set):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise NotPlainError(f"expected what YAML can hold ({error})") from error


def merge(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``extra`` laid over it. Naming another part (``use``) drops the settings of the old one."""
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
    """Every setting in nested mappings, as ``section.setting`` and its value."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{parent}{key}.")
        else:
            yield f"{parent}{key}", value


def from_words(kind: type[T], owner: str, words: Iterable[str], example: str = "") -> T:
    """The settings class ``kind`` from words ``setting=value``, such as ``example``; ``owner`` says whose they are.

    Raises:
        ConfigError: one error names everything that is wrong with them.
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
    """A message about settings without the section that the user did not write."""
    head, colon, rest = problem.partition(": ")
    return head.replace(f"{section}.", "") + colon + rest


def overrides(words: Iterable[str], problems: list[str]) -> dict[str, Any]:
    """``["train.steps=5", "layout=ddp"]`` as nested mappings; of two words for one setting the last counts.

    ``layout=ddp`` is short for ``layout.use=ddp``. A word that is not of this form is appended to ``problems``.
    """
    found: dict[str, Any] = {}
    for word in words:
        path, equals, text = word.partition("=")
        *parents, last = path.split(".") if "." in path else (path, "use")
        if not equals or not all(name.isidentifier() for name in (*parents, last)):
            problems.append(f"{word!r}: expected section.setting=value, as in train.steps=100 or layout=ddp")
            continue
        node = found
        for name in parents:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        node[last] = text
    return found
