"""Steps that the device computes while the host continues."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recipe_core.settings.job import resolve
from recipe_core.testing import toy
from recipe_core.testing.waiting import HIDDEN, HostWaitsError, NeverWait, readings

STEPS = ("train.steps=5", "train.log_every=100", "train.eval_every=0", "train.micro_batch=4")


@pytest.mark.parametrize("words", [
    (), ("train.optimizer=lamb",), ("train.precision=bf16",), ("train.activation_checkpointing=true",),
    ("train.precision=bf16", "train.optimizer_states=master"),
    ("train.precision=bf16", "train.stochastic_rounding=true"),
])  # fmt: skip
def test_the_host_waits_only_where_a_row_is_read(words: tuple[str, ...], tmp_path: Path) -> None:
    job = resolve(toy.registry(), "toy", (*STEPS, *words))
    assert readings(job, tmp_path / "run") == 1  # the last step's row


def test_each_row_is_read_once(tmp_path: Path) -> None:
    job = resolve(toy.registry(), "toy", (*STEPS, "train.log_every=2", "model.counts=true"))
    assert readings(job, tmp_path / "run") == 3  # steps 2, 4 and the last


@pytest.mark.parametrize("waits", [
    lambda x: x.cpu(), lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: torch.zeros(2).to(HIDDEN),
    lambda x: x.copy_(torch.zeros(2)),
])  # fmt: skip
def test_what_waits_is_refused(waits: object) -> None:
    with NeverWait(), pytest.raises(HostWaitsError):
        waits(torch.empty(2, device=HIDDEN))  # type: ignore[operator]
