"""The setting ``train.log_format``: compact lines on the console, or a format of the recipe. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_core.errors import did_you_mean
from recipe_core.hooks.specs import Recipe

AUTO, COMPACT = "auto", "compact"
"""``auto`` is the recipe's own line, if it has one, else the compact one."""


def format_problems(recipe: Recipe, name: str) -> Iterator[str]:
    """Yield a problem if ``recipe`` has no format ``name``."""
    known = [AUTO, COMPACT, *recipe.log_formats]
    if name not in known:
        expected = f"{', '.join(known[:-1])} or {known[-1]}"
        yield f"train.log_format: expected {expected}, got {name!r}{did_you_mean(name, known)}"


def target_of(recipe: Recipe, name: str) -> str:
    """Return the target that formats lines as ``name``; empty: the core's."""
    return recipe.log_line if name == AUTO else recipe.log_formats.get(name, "")
