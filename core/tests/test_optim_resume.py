"""Runs with every optimizer and every width of states: stopped and continued, they are the run that never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core import registry
from recipe_core.curves import read_rows
from recipe_core.job import Job, resolve
from recipe_core.lazy import flat
from recipe_core.run import run
from recipe_core.testing import toy

KINDS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "mixed": ("train.precision=bf16_mixed", "train.optimizer_states=fp32"),
    "bf16": ("train.precision=bf16",),
    "bf16 rounded": ("train.precision=bf16", "train.stochastic_rounding=true"),
    "fp32 states": ("train.precision=bf16", "train.optimizer_states=fp32"),
    "fp32 states rounded": ("train.precision=bf16", "train.optimizer_states=fp32", "train.stochastic_rounding=true"),
    "master": ("train.precision=bf16", "train.optimizer_states=master"),
}
CASES = [(optimizer, kind) for optimizer in ("adamw", "lamb") for kind in KINDS]
Outcome = tuple[dict[int, Any], dict[str, tuple[str, list[float]]]]
"""Loss and gradient norm by step, and dtype and values of every tensor of the last checkpoint."""


def job(*words: str) -> Job:
    found = registry.load([("core", lambda: __import__("recipe_core.plugin").plugin), ("toy", lambda: toy)])
    return resolve(found, "toy", ("train.eval_every=0", "train.steps=4", "checkpoint=single", *words))


def outcome(out: Path, *words: str) -> Outcome:
    run(job(*words), out)
    losses = {row["step"]: (row["loss"], row["grad_norm"]) for row in read_rows(out / "metrics.jsonl")}
    last = max((out / "checkpoints").glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
    state = torch.load(last / "checkpoint.pt", weights_only=True)
    return losses, tensors(state)


def tensors(state: Mapping[str, Any]) -> dict[str, tuple[str, list[float]]]:
    found = {name: leaf for name, leaf in flat(state) if isinstance(leaf, torch.Tensor)}
    return {name: (str(leaf.dtype), leaf.double().flatten().tolist()) for name, leaf in found.items()}


@pytest.mark.parametrize(("optimizer", "kind"), CASES)
def test_stopped_and_continued_it_is_the_same_run(tmp_path: Path, optimizer: str, kind: str) -> None:
    words = (f"train.optimizer={optimizer}", *KINDS[kind])
    whole = outcome(tmp_path / "whole", *words)
    outcome(tmp_path / "cut", *words, "train.stop_after=2")
    assert outcome(tmp_path / "cut", *words) == whole
    losses, found = whole
    assert len(losses) == 4
    widths = {name.rpartition(".")[2]: dtype for name, (dtype, _) in found.items() if name.startswith("optimizer.")}
    wide = "torch.bfloat16" if kind in ("bf16", "bf16 rounded") else "torch.float32"
    master = {"master": wide} if kind == "master" else {}
    assert widths == {"step": "torch.float32", "exp_avg": wide, "exp_avg_sq": wide, **master}


def test_weights_that_a_run_begins_with_are_those_of_its_master_copy(tmp_path: Path) -> None:
    words = (*KINDS["master"], "train.lr=0.1")
    _, first = outcome(tmp_path / "first", *words)
    still = ("train.lr=1e-30", "train.weight_decay=0", "train.stop_after=1", f"train.init_from={tmp_path / 'first'}")
    _, second = outcome(tmp_path / "second", *words, *still)
    names = [name for name in first if name.startswith("model.")]
    assert [second[name] for name in names] == [first[name] for name in names]
