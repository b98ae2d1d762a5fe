"""An optimizer, a schedule, a tracker, a loss and a dataset with files, as somebody wrote them for API 1.

Never edit this file: later cores must run it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from recipe_core import (
    DataFacts,
    Dataset,
    LossSpec,
    OptimizerFacts,
    OptimizerSpec,
    ScheduleSpec,
    TrackerSpec,
    Train,
    hookimpl,
)

API = 1


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Gradient descent with momentum."""

    momentum: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Halves:
    """A rate that halves."""

    every: int = 2


@dataclass(frozen=True, kw_only=True)
class Diary:
    """A text file."""

    name: str = "diary.txt"


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A loss times a factor."""

    factor: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Numbers of a file that was prepared."""

    folder: str = ""
    sequence: int = 8


@dataclass(frozen=True, kw_only=True)
class Making:
    """A file with numbers."""

    output: str = ""
    count: int = 40


def optimizer_facts(config: Descent, train: Train, model: Any) -> OptimizerFacts:
    return OptimizerFacts(bytes_per_parameter=4.0)


def rates(config: Halves, train: Train) -> Callable[[int], float]:
    return lambda step: float(train.lr * 0.5 ** (step // config.every))


def data_facts(config: Stored) -> DataFacts:
    return DataFacts(sequence=config.sequence)


@hookimpl
def register_optimizers() -> Iterable[OptimizerSpec]:
    yield OptimizerSpec(
        name="frozen_descent",
        build="frozen_step_parts:descent",
        config=Descent,
        facts="frozen_step:optimizer_facts",
        uses=("weight_decay",),
        summary="gradient descent with momentum",
    )


@hookimpl
def register_schedules() -> Iterable[ScheduleSpec]:
    yield ScheduleSpec(name="frozen_halves", build="frozen_step:rates", config=Halves, summary="halves")


@hookimpl
def register_trackers() -> Iterable[TrackerSpec]:
    yield TrackerSpec(name="frozen_diary", build="frozen_step_parts:Writer", config=Diary, summary="a text file")


@hookimpl
def register_losses() -> Iterable[LossSpec]:
    yield LossSpec(name="frozen_scaled", build="frozen_step_parts:scaled", config=Scaled, summary="times a factor")


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    yield Dataset(
        name="frozen_stored",
        build="frozen_step_parts:read",
        config=Stored,
        facts="frozen_step:data_facts",
        gives=("ids", "next"),
        prepare="frozen_step_parts:prepare",
        prepare_config=Making,
        summary="numbers of a file",
    )
