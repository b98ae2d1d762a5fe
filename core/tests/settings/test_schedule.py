"""Learning rates against transformers' schedules and against numbers worked out by hand."""

from typing import Any

import pytest
import torch

from recipe_core import Train
from recipe_core.settings import schedule
from recipe_core.settings.schedule import learning_rate


def rates(train: Train) -> list[float]:
    return [learning_rate(train, step) for step in range(train.steps)]


def test_warms_up_from_zero_and_falls_linearly() -> None:
    train = Train(steps=8, warmup_steps=4, lr=1.0, schedule="linear")
    assert rates(train) == [0, 0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25]


def test_cosine_ends_at_the_smallest_rate() -> None:
    train = Train(steps=4, lr=1.0, min_lr=0.2, schedule="cosine")
    assert rates(train)[2] == pytest.approx(0.6)
    assert learning_rate(train, 4) == pytest.approx(0.2)
    assert learning_rate(train, 9) == pytest.approx(0.2)


def test_constant_after_a_proportional_warmup() -> None:
    assert rates(Train(steps=10, warmup_ratio=0.2, lr=2.0, schedule="constant")) == [0, 1, 2, 2, 2, 2, 2, 2, 2, 2]


def nvidia(lr: float, warmup: float, total: int, degree: float) -> list[float]:
    """The rates that NVIDIA's PolyWarmUpScheduler gives: its formula, for the counts 1 to ``total``."""
    found = []
    for count in range(1, total + 1):
        progress = count / total
        found.append(lr * progress / warmup if progress < warmup else lr * (1.0 - progress) ** degree)
    return found


@pytest.mark.parametrize(
    ("lr", "warmup", "steps", "power"),
    [(6e-3, 0.2843, 7038, 0.5), (4e-3, 0.128, 1563, 0.5), (1.0, 0.0, 10, 1.0), (1.0, 1.0, 10, 2.0)],
)
def test_polynomial_is_that_of_nvidia(lr: float, warmup: float, steps: int, power: float) -> None:
    train = Train(lr=lr, warmup_ratio=warmup, steps=steps, schedule="polynomial", schedule_power=power)
    assert rates(train) == nvidia(lr, warmup, steps, power)


def test_polynomial_takes_warmup_steps_and_a_smallest_rate() -> None:
    train = Train(steps=8, warmup_steps=4, lr=1.0, min_lr=0.5, schedule="polynomial", schedule_power=1.0)
    assert rates(train) == [0.25, 0.5, 0.75, 0.75, 0.6875, 0.625, 0.5625, 0.5]
    assert learning_rate(train, 8) == learning_rate(train, 50) == 0.5


def wsd(steps: int, *, train: dict[str, Any] | None = None, **settings: Any) -> list[float]:
    rate = schedule.wsd(schedule.Wsd(**settings), Train(steps=steps, lr=1.0, **(train or {})))
    return [rate(step) for step in range(steps + 2)]


def test_wsd_warms_up_stays_and_decays() -> None:
    short = {"warmup_steps": 2, "min_lr": 0.2}
    assert wsd(10, decay_steps=4, train=short) == pytest.approx(
        [0, 0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2], abs=1e-12
    )
    assert wsd(10, decay_ratio=0.4, train=short) == wsd(10, decay_steps=4, train=short)
    assert wsd(4, decay_steps=4, shape="sqrt") == pytest.approx([1, 0.5, 1 - 0.5**0.5, 1 - 0.75**0.5, 0, 0])
    assert wsd(4, decay_steps=4, shape="cosine") == rates(Train(steps=4, lr=1.0, schedule="cosine")) + [0, 0]


def test_wsd_without_a_decay_and_with_one_that_begins_in_the_warm_up() -> None:
    assert wsd(4, decay_ratio=0.0) == [1.0] * 6
    assert wsd(4, decay_steps=9, train={"warmup_steps": 2}) == [0, 0.5, 1.0, 0.5, 0.0, 0.0]


def test_a_run_stopped_in_the_stable_phase_of_wsd_may_become_longer() -> None:
    short, long = (wsd(steps, decay_steps=4, train={"warmup_steps": 3}) for steps in (20, 40))
    assert short[:17] == long[:17]


@pytest.mark.peer
@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_equals_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    train = Train(steps=50, warmup_steps=7, lr=3e-4, schedule=name)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=train.lr)
    peer = transformers.get_scheduler(name, optimizer, num_warmup_steps=7, num_training_steps=50)
    theirs = []
    for _ in range(train.steps):
        theirs.append(peer.get_last_lr()[0])
        optimizer.step()
        peer.step()
    assert rates(train) == pytest.approx(theirs, rel=1e-12)
