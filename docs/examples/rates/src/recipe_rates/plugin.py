"""The command ``recipe rates``."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import CommandSpec, hookimpl


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """The command."""
    yield CommandSpec(
        name="rates",
        build="recipe_rates.command:rates",
        summary="Print the learning rates of a recipe.",
    )
