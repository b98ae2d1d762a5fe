"""The page docs/reference/fields.md: fields, attributes and methods of the public classes of :mod:`recipe_core`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import api

import recipe_core
from recipe_core.settings.describe import meanings

HEAD = """\
<!-- Written by docs/generate.py from the public names; change those and run `nox -s docs -- --write`. -->

# Fields of the public classes

What the classes among the [public names](api.md) hold and do, by class. A field without a default is required.
"""
LIST = ("Train",)
"""Classes whose fields another page lists."""


def documented() -> Iterator[tuple[str, type]]:
    """Yield the public classes that have fields or methods to list, sorted by name."""
    for name in sorted(recipe_core.__all__, key=str.lower):
        thing = getattr(recipe_core, name)
        if name in LIST or not inspect.isclass(thing) or issubclass(thing, BaseException) or thing.__name__ != name:
            continue
        if rows_of_fields(thing) or rows_of_methods(thing):
            yield name, thing


def link(name: str) -> str:
    """Return a public name as a cell: with a link to its fields, if it has some."""
    if name in LIST:
        return f"[`{name}`](settings.md#train)"
    return f"[`{name}`](fields.md#{name.lower()})" if name in dict(documented()) else f"`{name}`"


def rows_of_fields(thing: type) -> list[str]:
    """Return a row for each field of a dataclass."""
    texts = meanings(thing)
    if not dataclasses.is_dataclass(thing):
        return []
    shown = [one for one in dataclasses.fields(thing) if one.repr and not one.name.startswith("_")]
    return [f"| `{one.name}` | {default(one)} | {cell(texts.get(one.name, ''))} |" for one in shown]


def default(one: dataclasses.Field[Any]) -> str:
    """Return the default of a field; empty if it is required."""
    if one.default_factory is not dataclasses.MISSING:
        made = one.default_factory()
        return f"`{made!r}`" if isinstance(made, dict | list | tuple) else f"`{type(made).__name__}()`"
    if one.default is dataclasses.MISSING:
        return ""
    if inspect.isfunction(one.default):
        return "a function"
    return f"`{one.default.__name__}`" if inspect.isclass(one.default) else f"`{one.default!r}`"


def rows_of_methods(thing: type) -> list[str]:
    """Return a row for each public method and property that the class documents itself."""
    rows = []
    for name, value in vars(thing).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        text = inspect.getdoc(function) if inspect.isfunction(function) else None
        if text and not name.startswith("_"):
            call = "" if isinstance(value, property) else arguments(function)
            meaning = re.split(r"\n(?:Args|Raises|Yields):", text)[0]
            rows.append(f"| `{name}{call}` | {cell(meaning)} |")
    return rows


def arguments(function: Any) -> str:
    """Return the names of a method's arguments in parentheses, without ``self``."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    names = [one.arg for one in (*tree.args.posonlyargs, *tree.args.args)][1:]
    names += [f"*{tree.args.vararg.arg}"] if tree.args.vararg else []
    return f"({', '.join([*names, *(f'{one.arg}=' for one in tree.args.kwonlyargs)])})"


def cell(text: str) -> str:
    """Return a docstring as a cell of a table."""
    return api.cell(" ".join(text.split()))


def page() -> str:
    """Return the page docs/reference/fields.md."""
    parts = [HEAD]
    for name, thing in documented():
        parts.append(f"## {name}\n\n{cell(api.first_sentence(inspect.getdoc(thing)))}")
        if rows := rows_of_fields(thing):
            parts.append("\n".join(["| field | default | |", "|---|---|---|", *rows]))
        if rows := rows_of_methods(thing):
            parts.append("\n".join(["| method | |", "|---|---|", *rows]))
    return "\n\n".join(part.strip() for part in parts) + "\n"
