"""An engine, a callback, a transform and data wrappers, as somebody wrote them for API 1.

Never edit this file: later cores must run it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from recipe_core import (
    CallbackSpec,
    DataFacts,
    DataWrapperSpec,
    EngineSpec,
    Job,
    Train,
    TransformSpec,
    Variable,
    hookimpl,
    too_small,
)

API = 1


@dataclass(frozen=True, kw_only=True)
class Desk:
    """PyTorch on the CPU, which counts."""

    label: int = 1

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "label"):
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of all weights so far."""

    until: int = 0


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """A note in a file, which is not needed."""

    file: str = "notes.txt"


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A trained gain beside frozen weights."""

    start: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Odd:
    """Samples whose first id is odd."""

    rest: int = 1


@dataclass(frozen=True, kw_only=True)
class Swapped:
    """Ids that are swapped for others."""

    share: float = 0.25


def claims(device: str) -> bool:
    return device == "desk"


def engine_problems(config: Desk, train: Train, layout: Any, processes: int | None) -> Iterable[str]:
    if train.device not in ("auto", "cpu"):
        yield f"train.device: this engine has no {train.device}"
    if layout is not None and layout.spec.name == "pp":
        yield "layout: this engine has no pipelines"


def environment(job: Job, processes: int, several_machines: bool) -> Iterable[Variable]:
    yield Variable("FROZEN_DESK", str(job.engine.config.label), "the engine reads it")


def callback_problems(config: Mean, train: Train) -> Iterable[str]:
    if config.until > train.steps:
        yield "until: is more than train.steps"


def transform_problems(config: Gain, train: Train) -> Iterable[str]:
    if config.start == 0:
        yield "start: nothing would pass"


def wrapped_facts(config: Odd, facts: DataFacts) -> DataFacts:
    return DataFacts(sequence=facts.sequence, vocabulary=facts.vocabulary)


@hookimpl
def register_engines() -> Iterable[EngineSpec]:
    yield EngineSpec(
        name="frozen_desk",
        build="frozen_around_parts:desk",
        config=Desk,
        claims="frozen_around:claims",
        problems="frozen_around:engine_problems",
        environment="frozen_around:environment",
        layouts={"ddp": "frozen_around_parts:replicas"},
        optimizers={"adamw": "frozen_around_parts:descent"},
        summary="PyTorch on the CPU, which counts",
    )


@hookimpl
def register_callbacks() -> Iterable[CallbackSpec]:
    yield CallbackSpec(
        name="frozen_mean",
        build="frozen_around_parts:MeanWeights",
        config=Mean,
        saves=True,
        bytes_per_parameter=4.0,
        problems="frozen_around:callback_problems",
        summary="the mean of all weights so far",
    )
    yield CallbackSpec(
        name="frozen_quiet", build="frozen_around_parts:Notes", config=Quiet, fatal=False, summary="a note in a file"
    )


@hookimpl
def register_transforms() -> Iterable[TransformSpec]:
    yield TransformSpec(
        name="frozen_gain",
        build="frozen_around_parts:gained",
        config=Gain,
        free=("start",),
        merge="frozen_around_parts:merge",
        problems="frozen_around:transform_problems",
        summary="a trained gain beside frozen weights",
    )


@hookimpl
def register_data_wrappers() -> Iterable[DataWrapperSpec]:
    yield DataWrapperSpec(
        name="frozen_odd",
        build="frozen_around_parts:odd",
        config=Odd,
        takes=("ids",),
        filters=True,
        facts="frozen_around:wrapped_facts",
        summary="samples whose first id is odd",
    )
    yield DataWrapperSpec(
        name="frozen_swapped",
        build="frozen_around_parts:swapped",
        config=Swapped,
        takes=("ids",),
        gives=("swapped",),
        summary="ids that are swapped for others",
    )
