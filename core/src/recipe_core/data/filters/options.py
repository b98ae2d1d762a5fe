"""Options of filters: text from the command line as the values that a filter takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from recipe_core.errors import did_you_mean
from recipe_core.files.documents import DocumentError, parse_yaml

_EMPTY = inspect.Parameter.empty
_VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def problem_of_options(
    options: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], files: Mapping[str, str]
) -> str:
    """Return what is wrong with the options of a filter; empty if nothing is.

    Args:
        options: as given.
        parameters: of its class or function.
        files: further options, which name a file, with its description.
    """
    named = {name: found for name, found in parameters.items() if found.kind not in _VARIABLE}
    takes_any = any(found.kind == inspect.Parameter.VAR_KEYWORD for found in parameters.values())
    known = [*files, *named]
    for name in options:
        if name not in known and not takes_any:
            return f"no option is named {name!r}{did_you_mean(name, known)} (options: {_listed(named, files)})"
    for name, what in files.items():
        if not options.get(name):
            return f"set {name} to the path of {what}; nothing is downloaded"
    missing = [name for name, found in named.items() if found.default is _EMPTY and name not in options]
    if missing:
        return f"the option {missing[0]} is missing (options: {_listed(named, files)})"
    for name, found in named.items():
        if name in options and (expected := _mismatch(convert(options[name], found), found.default)):
            return f"{name}: expected {expected}, got {options[name]!r:.60}"
    return ""


def convert(value: Any, parameter: inspect.Parameter | None = None) -> Any:
    """Return an option as a value: text as YAML reads it, unless the option is a text; lists as tuples."""
    if isinstance(value, list | tuple):
        return tuple(convert(item) for item in value)
    if isinstance(value, dict):
        return {name: convert(item) for name, item in value.items()}
    if not isinstance(value, str) or (parameter is not None and _is_text(parameter)):
        return value
    try:
        read = parse_yaml(value)
    except DocumentError:
        return value
    return read if read is None or isinstance(read, bool | int | float) else value


def _is_text(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in (str, "str") or (isinstance(parameter.default, str))


def _mismatch(value: Any, default: Any) -> str:
    """The kind of value that an option with this default takes, if ``value`` is another."""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, int | float):
        return "" if value is None or (isinstance(value, int | float) and not isinstance(value, bool)) else "a number"
    if isinstance(default, str):
        return "" if isinstance(value, str) else "a text"
    if isinstance(default, tuple | list):
        return "" if isinstance(value, tuple | str) else "a list"
    return ""


def _listed(named: Mapping[str, inspect.Parameter], files: Mapping[str, str]) -> str:
    texts = [name if found.default is _EMPTY else f"{name}={found.default}" for name, found in named.items()]
    return ", ".join([*files, *texts]) or "none"
