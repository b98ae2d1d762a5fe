"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import EngineSpec, Layout, Part, Recipe, Train, Use, hookimpl, too_small

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_engines", "register_models", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Settings of the engine, the section ``engine``."""

    threads: int = 1
    """Threads of PyTorch's operators in each process."""
    flush_denormal: bool = True
    """Compute with numbers below 1e-38 as zeros: many processors need a hundred times as long for them."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "threads"):
            raise ValueError("\n".join(problems))


def problems(config: Threads, train: Train, layout: Part[Layout] | None, processes: int | None) -> Iterable[str]:
    """Yield what the engine lacks of a run; `recipe check` and the start of the run report it."""
    if train.device not in ("auto", "cpu"):
        yield f"train.device: this engine computes on the CPU, and not on {train.device!r}"


@hookimpl
def register_engines() -> Iterable[EngineSpec]:
    """The engine: ``recipe run RECIPE engine=new_plugin_threads engine.threads=4``.

    An engine of a new kind of device also names ``claims``, by which ``engine=auto`` selects it where its devices are.
    """
    yield EngineSpec(
        name="new_plugin_threads",
        build="recipe_new_plugin.engine:build",
        config=Threads,
        problems="recipe_new_plugin.plugin:problems",
        summary="PyTorch on the CPU, with a number of threads",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model on an engine of its own",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        engine=Use("new_plugin_threads"),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
