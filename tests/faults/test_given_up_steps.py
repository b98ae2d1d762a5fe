"""A step that is given up between two micro batches leaves no trace: the run continues to the same bits."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from recipe_core.hooks.registry import load
from recipe_core.testing import spawn
from recipe_core.train import stopping
from recipe_core.train.metrics.curves import read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

WORDS = (
    "model.positions=32", "data.sequence=32", "model.dropout=0.1", "train.steps=4", "train.global_batch=16",
    "train.micro_batch=1", "train.log_every=1", "train.eval_every=2", "train.eval_samples=4",
)  # fmt: skip
STEP, MICRO_BATCH = 2, 3
"""The signal comes in the third step, when its fourth micro batch begins."""


def train(words: tuple[str, ...], processes: int, out: str, signalled: int | None) -> tuple[int, int]:
    """Train; the rank ``signalled`` gets a signal. Exit code, and the last micro batch of the third step that ran."""
    stopping.SECONDS = 1e-9  # each step is a long one
    begin, ask = stopping.Stopping.begin_step, stopping.Stopping.discards
    steps, computed = [0], [-1]

    def beginning(self: Any, micro_batches: int) -> None:
        steps[0] += 1
        begin(self, micro_batches)

    def asking(self: Any, number: int) -> bool:
        third = steps[0] == STEP + 1
        if third and number == MICRO_BATCH and self.engine.rank == signalled:
            signal.raise_signal(signal.SIGUSR2)
        given_up = ask(self, number)
        if third and not given_up:
            computed[0] = number
        return given_up

    stopping.Stopping.begin_step, stopping.Stopping.discards = beginning, asking  # type: ignore[method-assign]
    job = checked_job(load(), "megatron_gpt:tiny", [*WORDS, *words], processes, Path(out))
    return run(job, Path(out))["exit_code"], computed[0]


def losses(out: Path) -> list[tuple[Any, ...]]:
    return [
        tuple(row.get(key) for key in ("step", "loss", "val_loss", "grad_norm"))
        for row in read_rows(out / "metrics.jsonl")
    ]


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        pytest.param(1, ("layout=single",), id="single"),
        pytest.param(2, ("layout=ddp",), id="ddp", marks=pytest.mark.long),
        pytest.param(2, ("layout=fsdp",), id="fsdp"),
        pytest.param(2, ("layout=zero1",), id="zero1", marks=pytest.mark.long),
        pytest.param(2, ("layout=tp",), id="tp", marks=pytest.mark.slow),
        pytest.param(2, ("layout=pp",), id="pp"),
        pytest.param(4, ("layout=pp", "layout.tp=2"), id="pp x tp", marks=pytest.mark.slow),
        pytest.param(4, ("layout=pp", "layout.data=fsdp"), id="pp x fsdp", marks=pytest.mark.long),
    ],
)
def test_a_step_given_up_leaves_no_trace(tmp_path: Path, processes: int, words: tuple[str, ...]) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    spawn(train, processes, words, processes, str(whole), None)
    ends = spawn(train, processes, words, processes, str(cut), processes - 1)
    assert [code for code, _ in ends] == [75] * processes
    lag = 2 if "layout=pp" in words else 0  # ranks of a pipeline agree on a later one
    assert [last for _, last in ends] == [MICRO_BATCH - 1 + lag] * processes
    results = json.loads((cut / "results.json").read_text())
    assert (results["step"], results["consumed_samples"], results["stopped"]) == (STEP, 16 * STEP, "SIGUSR2")
    assert [path.name for path in (cut / "checkpoints").iterdir()] == [f"step-{STEP}"]
    assert losses(cut) == losses(whole)[: len(losses(cut))]
    assert [code for code, _ in spawn(train, processes, words, processes, str(cut), None)] == [0] * processes
    assert losses(cut) == losses(whole)
