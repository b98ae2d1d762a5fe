"""Settings with their types, values and descriptions, the strings below them in their class. No torch here."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.settings.values import choices, kinds


@dataclass(frozen=True)
class Setting:
    """One setting, as a user sees it."""

    name: str
    kind: str
    """Its declared type, or its values if they are few."""
    value: str
    meaning: str


def described(settings: type, values: Mapping[str, Any]) -> list[Setting]:
    """Describe the settings of a class, with plain ``values``."""
    meaning, declared = meanings(settings), kinds(settings)
    return [
        Setting(
            field.name, _kind(field, declared[field.name]), written(values.get(field.name)), meaning.get(field.name, "")
        )
        for field in dataclasses.fields(settings)
        if field.init
    ]


def defaults(settings: type) -> dict[str, Any]:
    """Return the defaults of a settings class; a setting without one is left out."""
    values = {}
    for field in dataclasses.fields(settings):
        if field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            values[field.name] = field.default
    return values


def _kind(field: dataclasses.Field[Any], declared: Any) -> str:
    few = choices(declared)
    return "|".join(few) if few and few != ["null"] else str(field.type)


def written(value: Any) -> str:
    """Return a value as on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return ",".join(map(written, value))
    return str(value)


def meanings(settings: type) -> dict[str, str]:
    """Return the descriptions of settings by name, as Markdown; they are parsed, since Python discards them."""
    texts: dict[str, str] = {}
    for declaring in reversed([base for base in settings.__mro__ if dataclasses.is_dataclass(base)]):
        texts |= dict(_strings(declaring))
    return texts


def _strings(settings: type) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(settings)))
    except (OSError, TypeError):  # made at run time, without source
        return
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for line, after in itertools.pairwise(body):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(after, ast.Expr):
            yield line.target.id, text_of(after)


def text_of(string: ast.Expr) -> str:
    """Return the text of a string statement, as Markdown."""
    return " ".join(str(ast.literal_eval(string.value)).replace("``", "`").split())
