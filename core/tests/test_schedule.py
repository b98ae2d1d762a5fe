"""Learning rates against transformers' schedules and against numbers worked out by hand."""

import pytest
import torch

from recipe_core import Train
from recipe_core.schedule import learning_rate


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


@pytest.mark.peer
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_equals_transformers(schedule: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    train = Train(steps=50, warmup_steps=7, lr=3e-4, schedule=schedule)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=train.lr)
    peer = transformers.get_scheduler(schedule, optimizer, num_warmup_steps=7, num_training_steps=50)
    theirs = []
    for _ in range(train.steps):
        theirs.append(peer.get_last_lr()[0])
        optimizer.step()
        peer.step()
    assert rates(train) == pytest.approx(theirs, rel=1e-12)
