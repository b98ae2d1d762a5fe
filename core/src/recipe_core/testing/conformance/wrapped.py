"""Checks of a data wrapper: the same samples for every number of ranks, in any order, and from an empty cache."""

from __future__ import annotations

from contextlib import suppress

from recipe_core.errors import ConfigError, RecipeError
from recipe_core.hooks.specs import Recipe
from recipe_core.hooks.specs.wrapper import DataWrapperSpec
from recipe_core.settings.job import Job
from recipe_core.testing.conformance.outcome import SkippedCheck
from recipe_core.testing.conformance.samples import alike_in_any_order, alike_on_ranks
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.testing.conformance.toy_runs import toy_job

_OF_TOY = ("vectors", "labels", "numbers")


def same_samples(plugin: Plugin, spec: DataWrapperSpec) -> str:
    """Check that the wrapped samples of a step do not depend on the number of ranks."""
    return alike_on_ranks(_job(plugin, spec), plugin.folder / "wrappers" / spec.name / "ranks")


def any_order(plugin: Plugin, spec: DataWrapperSpec) -> str:
    """Check that a wrapped sample does not depend on earlier reads, nor on what another reader left in the cache."""
    folder = plugin.folder / "wrappers" / spec.name
    return alike_in_any_order(_job(plugin, spec), folder / "first", folder / "second")


def _job(plugin: Plugin, spec: DataWrapperSpec) -> Job:
    """A job of the plugin's recipes that uses the wrapper, else of the core's toy."""
    for recipe in plugin.of(Recipe):
        with suppress(RecipeError):
            job = plugin.tiny(recipe)
            if any(part.spec.name == spec.name for part in job.data.wrappers):
                return job
    if set(spec.takes) <= set(_OF_TOY):
        with suppress(ConfigError):
            return toy_job(plugin.module, [f"wrappers={spec.name}"])
    raise SkippedCheck(
        f"no recipe of the plugin uses it, and the core's toy gives {', '.join(_OF_TOY)}; add a recipe with "
        f'data=Use(..., wrappers=("{spec.name}",))'
    )
