"""Runs with every optimizer and every width of states: stopped and continued, they are the run that never stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core.settings.fill import flat
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.train.metrics.curves import read_rows
from recipe_core.train.run import run

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
    return resolve(toy.registry(), "toy", ("train.eval_every=0", "train.steps=4", "checkpoint=single", *words))


def outcome(out: Path | str, *words: str) -> Outcome:
    out = Path(out)
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


def test_master_copies_begin_with_every_bit_of_the_source(tmp_path: Path) -> None:
    """Of an fp32 run, and of the copies that a bf16 run kept; the weights themselves are these, rounded."""
    still = ("train.lr=1e-30", "train.weight_decay=0", "train.stop_after=1")
    for kind, kept in (("fp32", "model.{}"), ("master", "optimizer.state.{}.master")):
        _, first = outcome(tmp_path / kind, *KINDS[kind], "train.lr=0.1")
        words = (*KINDS["master"], *still, f"train.init_from={tmp_path / kind}")
        _, second = outcome(tmp_path / f"after {kind}", *words)
        names = [name.removeprefix("model.") for name in first if name.startswith("model.")]
        source = {name: first[kept.format(name)] for name in names}
        assert {name: second[f"optimizer.state.{name}.master"] for name in names} == source
        for name in names:
            values = torch.tensor(source[name][1], dtype=torch.float32)
            assert second[f"model.{name}"] == ("torch.bfloat16", values.bfloat16().double().tolist())
            assert not torch.equal(values.bfloat16().float(), values)
    _, third = outcome(tmp_path / "wide", "train.lr=0", "train.stop_after=1", f"train.init_from={tmp_path / 'master'}")
    assert {name: third[f"model.{name}"] for name in names} == source


RANKS = {"master": (KINDS["master"], 2**-8), "lamb": (("train.optimizer=lamb",), 1e-6)}
"""Values kept, and how far sums in another order may be off: of bf16 gradients, and of fp32 ones."""


def on_this_rank(folder: str) -> dict[str, Outcome]:
    """Outcomes of both kinds in ``folder``; a run in the middle continues."""
    found = {}
    for kind, (words, _) in RANKS.items():
        os.environ["RECIPE_STORE"] = str(Path(folder) / f"{kind}.store")  # where the ranks of this run meet
        found[kind] = outcome(Path(folder) / kind, *words, "train.save_every=2", "train.keep=0")
    return found


def test_states_saved_on_two_ranks_go_on_on_two_and_on_one(tmp_path: Path) -> None:
    """On two ranks, every number equals the uninterrupted run's; on one, sums have another order."""
    (tmp_path / "whole").mkdir()
    whole, _ = spawn(on_this_rank, 2, str(tmp_path / "whole"))
    for ranks in ("two", "one"):
        shutil.copytree(tmp_path / "whole", tmp_path / ranks, ignore=shutil.ignore_patterns("step-4", "*.store"))
    two, _ = spawn(on_this_rank, 2, str(tmp_path / "two"))
    assert two == whole
    for kind, (words, tolerance) in RANKS.items():
        losses, _ = outcome(tmp_path / "one" / kind, *words, "train.save_every=2", "train.keep=0")
        assert losses.keys() == whole[kind][0].keys()
        for step, found in losses.items():
            assert found == pytest.approx(whole[kind][0][step], rel=tolerance)
