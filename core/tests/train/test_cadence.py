"""When a run logs, evaluates, saves and compares replicas."""

from __future__ import annotations

from typing import Any

from recipe_core.hooks.train import Train
from recipe_core.train.cadence import Cadence


def steps_of(event: str, cadence: Cadence, **options: Any) -> list[int]:
    """The steps after which an event is due."""
    return [step for step in range(1, 13) if getattr(cadence, event)(step, **options)]


def cadence(first_step: int = 0, epoch_steps: int = 0, **settings: Any) -> Cadence:
    """A cadence of 10 steps without other events than those in ``settings``."""
    quiet = {"log_every": 100, "eval_every": 0, "save_every": 0, "check_replicas_at_save": False}
    return Cadence(Train(steps=10, **{**quiet, **settings}), first_step, epoch_steps)


def test_the_end_is_that_of_the_schedule_or_of_this_invocation() -> None:
    assert cadence().end == 10
    assert cadence(first_step=4, stop_after=3).end == 7
    assert cadence(first_step=8, stop_after=3).end == 10


def test_rows_and_checkpoints_are_regular_and_at_the_end() -> None:
    assert steps_of("logs", cadence(log_every=4)) == [4, 8, 10, 11, 12]
    assert steps_of("saves", cadence(first_step=1, stop_after=5, save_every=4)) == [4, 6, 7, 8, 9, 10, 11, 12]


def test_evaluations_follow_the_schedule_and_not_the_invocation() -> None:
    assert steps_of("evaluates", cadence(eval_every=4, stop_after=5)) == [4, 8, 10, 12]
    assert steps_of("evaluates", cadence()) == []
    assert steps_of("evaluates", cadence(epoch_steps=3)) == [3, 6, 9, 10, 12]
    assert steps_of("evaluates", cadence(epoch_steps=3, eval_every=5)) == [5, 10]


def test_the_clock_asks_for_a_checkpoint_only_if_it_may() -> None:
    assert not cadence().overdue(1e9)
    assert cadence(save_minutes=2.0).overdue(120.0)
    assert not cadence(save_minutes=2.0).overdue(119.0)


def test_replicas_are_compared_regularly_and_before_checkpoints() -> None:
    assert steps_of("compares", cadence(check_replicas_every=5), saved=True) == [5, 10]
    assert steps_of("compares", cadence(check_replicas_at_save=True), saved=False) == []
    assert cadence(check_replicas_at_save=True).compares(3, saved=True)
