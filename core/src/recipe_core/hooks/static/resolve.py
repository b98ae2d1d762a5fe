"""Check the targets of contributions without importing them, nor torch.

Each target is checked against the arguments of its hook, see :func:`recipe_core.hooks.target.called`. Code that cannot
be decided without running it (names made at run time, a decorated function) passes: there are no false alarms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recipe_core.hooks.kinds import Contribution


def target_problems(item: Contribution) -> list[str]:
    """Return a message for each target of ``item``, a spec or a recipe, that a run could not import or call."""
    from recipe_core.hooks.kinds import noun

    owner = f"{noun(item)} {item.name!r}"
    return [
        f"{owner}: {field}: {target!r}: {problem}; fix the plugin, or install what it needs"
        for field, target, arguments in targets(item)
        if (problem := problem_with(target, arguments))
    ]


def problem_with(target: str, arguments: tuple[str, ...]) -> str | None:
    """Return the reason why ``target`` cannot be called with ``arguments``; None if it can, or if that is undecided."""
    from recipe_core.hooks.static import source

    module, _, name = target.partition(":") if ":" in target else target.rpartition(".")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        return "expected package.module:function"
    try:
        source.require(module, name, arguments)
    except source.MissingError as error:
        return str(error)
    return None


def targets(item: Contribution) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield field, target and arguments for each target of ``item``."""
    for field in dataclasses.fields(item):
        arguments = field.metadata.get("arguments")
        if arguments is None:
            continue
        value = getattr(item, field.name)
        if isinstance(value, Mapping):
            yield from ((f"{field.name}[{key!r}]", target, arguments) for key, target in value.items())
        elif isinstance(value, str) and value:
            yield field.name, value, arguments
