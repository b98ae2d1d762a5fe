"""Settings and checks of the core's own callbacks. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from recipe_core.hooks.train import Train, due, too_small


def raise_problems(problems: list[str]) -> None:
    """Raise a ValueError with a line for each problem, if there are any."""
    if problems:
        raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class Ema:
    """Settings of the moving average of the weights."""

    decay: float = 0.999
    """Share of the old average that each update keeps."""
    every: int = 1
    """Steps between two updates."""
    start: int = 0
    """Steps until averaging begins; up to then, the average is a copy of the weights."""
    evaluate: bool = True
    """Also evaluate with the average, as ``val_ema_loss``."""

    def __post_init__(self) -> None:
        problems = [*too_small(self, 1, "every"), *too_small(self, 0, "start")]
        if not 0 <= self.decay < 1:
            problems.append(f"decay: expected 0 to below 1, got {self.decay}")
        raise_problems(problems)


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Settings of the end of a run that no longer improves."""

    metric: str = "val_loss"
    """A value of the evaluations."""
    best: Literal["lowest", "highest"] = "lowest"
    """Which value is the best one."""
    patience: int = 3
    """Evaluations in a row without a better value, after which the run ends."""
    least_change: float = 0.0
    """A value counts as better only if it differs by more than this from the best one."""

    def __post_init__(self) -> None:
        raise_problems([*too_small(self, 1, "patience"), *too_small(self, 0, "least_change")])


@dataclass(frozen=True, kw_only=True)
class Unfreezing:
    """Settings of gradual unfreezing."""

    trained: tuple[str, ...] = ()
    """Names of parameters that are trained from the beginning; a star stands for any text (``head.*``). Without any,
    training begins with the last block."""
    every: int = 100
    """Steps after which the next block is trained, too: from the last to the first, then the rest."""

    def __post_init__(self) -> None:
        raise_problems(too_small(self, 1, "every"))


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Settings of the statistics of activations."""

    modules: str = ""
    """Submodules whose output is measured (``blocks.*``; a star stands for one level). Empty: the model's blocks."""


@dataclass(frozen=True, kw_only=True)
class BatchRamp:
    """Settings of a global batch that grows."""

    start: int = 0
    """Samples of the first step; 0: a micro batch on each rank."""
    by: int = 0
    """Samples that each increment adds; 0: a micro batch on each rank."""
    samples: int = 1000
    """Samples after which the batch has ``train.global_batch``; increments are evenly spaced until then."""

    def __post_init__(self) -> None:
        raise_problems([*too_small(self, 0, "start", "by"), *too_small(self, 1, "samples")])


def early_stopping_problems(config: EarlyStopping, train: Train) -> Iterator[str]:
    """Yield a problem if the run never evaluates, or ends before patience could."""
    if not train.eval_every:
        yield "it needs evaluations; set train.eval_every"


def activations_problems(config: Activations, train: Train) -> Iterator[str]:
    """Yield a problem if the model is compiled, which would compile it again for the measured steps."""
    if train.compile:
        yield "it reads what goes between modules, which a compiled model does not show; set train.compile=false"


def batch_ramp_problems(config: BatchRamp, train: Train) -> Iterator[str]:
    """Yield a problem if the batch would not grow."""
    if config.start > train.global_batch:
        yield f"start: {config.start} is more than train.global_batch, which is {train.global_batch}"


def measured(step: int, train: Train) -> bool:
    """True if ``step`` is logged by the settings."""
    return step == train.steps or due(step, train.log_every)
