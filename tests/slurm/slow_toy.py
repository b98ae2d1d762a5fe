"""The toy of the core, with samples that take their time: a run to interrupt."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from recipe_core import Dataset, Recipe, Train, Use, hookimpl
from recipe_core.testing.toy import ToyData, data_facts, register_models

__all__ = ["build_data", "data_facts", "register_datasets", "register_models", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class SlowData(ToyData):
    seconds: float = 0.0
    """Time that reading a micro batch takes."""
    broken_at: int | None = None
    """The sample from which on reading fails, on rank 1 alone."""


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    yield Dataset(name="slow_data", build="slow_toy:build_data", facts="slow_toy:data_facts", config=SlowData)


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    yield Recipe(
        name="slow",
        summary="the toy, slowly",
        model=Use("toy_model"),
        data=Use("slow_data"),
        layout=Use("ddp"),
        train=Train(steps=60, global_batch=4, micro_batch=2, lr=0.05, log_every=1, save_every=10, keep=3, device="cpu"),
    )


def build_data(config: SlowData, run: Any) -> Any:
    from recipe_core.testing.toy_parts import Vectors

    class Slow(Vectors):
        def read(self, split: str, start: int, count: int) -> Any:
            time.sleep(config.seconds)
            if config.broken_at is not None and run.rank == 1 and start >= config.broken_at:
                raise IndexError(f"no sample {start}")
            return super().read(split, start, count)

    return Slow(config)
