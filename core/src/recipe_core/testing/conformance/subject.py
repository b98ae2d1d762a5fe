"""The plugin under test, and the jobs that use its contributions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from recipe_core.errors import RecipeError
from recipe_core.hooks.kinds import KINDS, Contribution, Kind
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import Model, Recipe
from recipe_core.settings.job import Job, resolve
from recipe_core.testing.runs import Finished, run_tiny

T = TypeVar("T")
FOUR_STEPS = ("train.steps=4", "train.log_every=1", "train.device=cpu")


@dataclass
class Plugin:
    """A plugin under test."""

    name: str
    """As ``recipe ls`` shows it."""
    module: str
    """The module with the hooks, as the entry point names it."""
    registry: Registry
    """Everything that is installed."""
    folder: Path
    """An empty folder for runs and files."""

    @cached_property
    def contributions(self) -> list[tuple[Kind, Contribution]]:
        """Pairs of kind and contribution, in the order of the hooks."""
        module = importlib.import_module(self.module)
        return [(kind, item) for kind, hook in KINDS.items() for item in getattr(module, hook, tuple)()]

    def of(self, kind: type[T]) -> list[T]:
        """Return the contributions of one class."""
        return [item for _, item in self.contributions if isinstance(item, kind)]

    @cached_property
    def whole(self) -> dict[str, Finished]:
        """Finished runs of four steps of each recipe's variant ``tiny``, by recipe; each runs on first use."""
        return _Runs(self.folder / "whole")

    def jobs(self, model: Model) -> Iterator[Job]:
        """Yield the jobs of installed recipes, variants included, whose model is ``model``.

        Those that do not resolve are left out: the check of variants reports them.
        """
        for name in self.registry.names("recipe"):
            with suppress(RecipeError):
                recipe = self.registry.get("recipe", name)
                for target in [name, *(f"{name}:{variant}" for variant in recipe.variants)]:
                    with suppress(RecipeError):
                        job = resolve(self.registry, target)
                        if job.model.spec == model:
                            yield job

    def tiny(self, recipe: Recipe) -> Job:
        """Return the job of the variant ``tiny``."""
        return resolve(self.registry, f"{recipe.name}:tiny")


class _Runs(dict[str, Finished]):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, recipe: str) -> Finished:
        self[recipe] = run_tiny(recipe, self._folder / recipe, *FOUR_STEPS)
        return self[recipe]
