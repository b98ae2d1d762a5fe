"""Measures of a row: speeds over the steps that it says, counts added up over micro batches, steps and ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core.engine import protocol
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import COUNTED, Run, accumulate
from recipe_core.settings.job import resolve
from recipe_core.testing import spawn, toy
from recipe_core.testing.toy import ToyData
from recipe_core.testing.toy_parts import Vectors
from recipe_core.train.metrics.curves import Row, read_rows
from recipe_core.train.metrics.meter import Meter
from recipe_core.train.run import run

BATCH = 8


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """Reading takes no time, so that a row's time is that of its steps alone."""
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    with protocol.start(Train(device="cpu")) as found:
        run = Run(
            device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
            train=Train(global_batch=BATCH), cache=Path(),
        )  # fmt: skip
        return Meter(found, run, 100, 1e6, every_loss=True)


def step(meter: Meter, seconds: float, loss: float = 1.0, **counts: int) -> None:
    values = {"loss": torch.tensor(loss), **{name: torch.tensor(n) for name, n in counts.items()}}
    meter.step(values, torch.tensor(2.0), 0.1, seconds, BATCH)


@pytest.mark.parametrize(("every", "window"), [(1, 10), (2, 10), (3, 12), (5, 10), (7, 14), (10, 10), (20, 20)])
def test_a_speed_is_over_the_fewest_rows_that_make_ten_steps(meter: Meter, every: int, window: int) -> None:
    seconds = [1.0 + number for number in range(60)]
    rows = []
    for number, second in enumerate(seconds, 1):
        step(meter, second)
        if number % every == 0:
            rows.append((number, meter.read().row))
    for number, row in rows:
        span = seconds[max(0, number - window) : number]
        assert row["samples_per_second"] == pytest.approx(BATCH * len(span) / sum(span))
        assert row["sequences_per_second"] == row["samples_per_second"]
        assert row["tokens_per_second"] == pytest.approx(100 * row["samples_per_second"])
        assert row["flops_per_second"] == pytest.approx(1e6 * row["samples_per_second"])
        assert row["seconds"] == pytest.approx(sum(seconds[number - every : number]) / every)


def test_counts_are_added_up_over_the_window(meter: Meter) -> None:
    for number in range(1, 16):
        step(meter, 0.5, real_tokens=3 * number, sequences=6)
        row = meter.read().row
    assert row["real_tokens_per_second"] == pytest.approx(sum(3 * number for number in range(6, 16)) / 5)
    assert row["sequences_per_second"] == pytest.approx(10 * 6 / 5)
    assert not {"real_tokens", "sequences"} & row.keys()


def test_a_count_is_exact_beyond_what_fp32_holds(meter: Meter) -> None:
    total: dict[str, torch.Tensor] = {}
    for _ in range(3):  # micro batches
        accumulate(total, {"loss": torch.tensor(0.0), "real_tokens": torch.tensor(2**24 + 1)}, 3, COUNTED)
    meter.step(total, torch.tensor(0.0), 0.1, 1.0, BATCH)
    assert meter.read().row["real_tokens_per_second"] == 3 * (2**24 + 1)


def test_every_loss_is_kept_until_it_is_read(meter: Meter) -> None:
    for loss in (3.0, 2.0, 1.0):
        step(meter, 1.0, loss)
    reading = meter.read()
    assert (reading.losses, reading.row["loss"]) == ([3.0, 2.0, 1.0], 1.0)
    step(meter, 1.0, 0.5)
    assert meter.read().losses == [0.5]


def train(out: str, *words: str) -> list[Row]:
    run(resolve(toy.registry(), "toy", ("train.device=cpu", *words)), Path(out))
    return read_rows(Path(out) / "metrics.jsonl")


def positive(first: int, end: int) -> int:
    return int((Vectors(ToyData()).read("train", first, end - first)["vectors"] > 0).sum())


@pytest.mark.parametrize(("ranks", "every"), [(1, 1), (1, 5), (2, 4)])
def test_a_run_counts_what_was_in_its_samples(tmp_path: Path, ranks: int, every: int) -> None:
    words = ("model.counts=true", "train.steps=16", f"train.log_every={every}", "train.eval_every=0")
    rows: Any = (
        spawn(train, 2, str(tmp_path / "run"), *words)[0] if ranks == 2 else train(str(tmp_path / "run"), *words)
    )
    window = {1: 10, 4: 12, 5: 10}[every]
    for row in rows[:-1] if every == 5 else rows:  # the last row of 5 is of one step alone
        steps = min(window, row["step"])
        real = positive((row["step"] - steps) * 8, row["step"] * 8)
        share = row["real_tokens_per_second"] / row["samples_per_second"]
        assert share == pytest.approx(real / (8 * steps), rel=1e-9)
        assert row["sequences_per_second"] == pytest.approx(2 * row["samples_per_second"])


def test_counting_changes_neither_the_losses_nor_the_evaluation(tmp_path: Path) -> None:
    plain, counted = (train(str(tmp_path / word), f"model.counts={word}") for word in ("false", "true"))
    for key in ("loss", "val_loss", "accuracy", "val_accuracy", "grad_norm"):
        assert [row.get(key) for row in plain] == [row.get(key) for row in counted]
    assert not any(key.startswith("val_") and "tokens" in key for row in counted for key in row)
