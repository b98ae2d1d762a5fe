"""Data parallel over more than two ranks, where the order of additions shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.checkpoint.formats.single import Single
from recipe_core.settings.job import resolve
from recipe_core.testing import spawn, toy
from recipe_core.train.run import run

WORDS = (
    "layout=ddp",
    "model.hidden=64",
    "train.steps=4",
    "train.micro_batch=2",
    "train.eval_every=0",
    "checkpoint=single",
)


def train(out: str, *words: str) -> None:
    run(resolve(toy.registry(), "toy", [*WORDS, *words], 4), Path(out))


def weights(out: Path) -> dict[str, Any]:
    state = Single().open(out / "checkpoints" / "step-4")
    return {name: tensor.read().tolist() for name, tensor in state["model"].items()}


def test_four_ranks_continue_to_the_last_bit(tmp_path: Path) -> None:
    """The first step of a process was reduced in other buckets than the later ones."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    spawn(train, 4, str(whole))
    spawn(train, 4, str(parts), "train.stop_after=1")
    spawn(train, 4, str(parts))
    assert weights(parts) == weights(whole)
