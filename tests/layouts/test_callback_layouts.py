"""The core's callbacks do the same under every layout, and resume exactly after a stop."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipe_core.hooks.registry import load
from recipe_core.testing import spawn
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

LAYOUTS = {"single": 1, "ddp": 2, "zero1": 2, "fsdp": 2, "tp": 2, "pp": 2}
"""Processes of each."""
STEPS = 6
WORDS = [
    "callbacks=ema,early_stopping,unfreezing,activations,batch_ramp", "callback.ema.decay=0.9",
    "callback.unfreezing.every=2", "callback.batch_ramp.start=4", "callback.batch_ramp.by=4",
    "callback.batch_ramp.samples=12",
    "callback.early_stopping.patience=50", "model.positions=32", "data.sequence=32", "model.dropout=0",
    "model.attention_dropout=0", f"train.steps={STEPS}", "train.eval_every=2", "train.log_every=1", "train.lr=1e-3",
    "train.eps=1e-3",  # or Adam turns rounding errors of the smallest gradients into updates
]  # fmt: skip
EMA = "callbacks.ema.weights."
pytestmark = pytest.mark.timeout(600)


def whole_and_halves(folder: str, cut: int) -> None:
    """Body of one process: each layout of this number of processes, whole, and stopped after ``cut`` steps."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # not in every release

    registry, store, processes = load(), os.environ.get("RECIPE_STORE"), int(os.environ["WORLD_SIZE"])
    same = [layout for layout, count in LAYOUTS.items() if count == processes]
    runs: list[tuple[str, str, list[str]]] = [(f"{layout}-whole", layout, []) for layout in same]
    runs += [(f"{layout}-halves", layout, [f"train.stop_after={cut}"]) for layout in same]
    runs += [(f"{layout}-halves", layout, []) for layout in same]
    if processes == 2:
        runs += [("moved", "fsdp", [f"train.stop_after={cut}"]), ("moved", "tp", [])]
    for number, (name, layout, words) in enumerate(runs):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        run(
            checked_job(registry, "megatron_gpt:tiny", [*WORDS, f"layout={layout}", *words], processes),
            Path(folder, name),
        )
        _clear_sharding_prop_cache()  # or DTensor uses meshes of this run, whose groups are destroyed


def averages(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors(folder).items() if name.startswith(EMA)}


def apart(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    assert one
    assert one.keys() == two.keys()
    return max(float((tensor - two[name]).abs().max()) for name, tensor in one.items())


def numbers(folder: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Rows without values that depend on the clock."""
    for row in read_rows(folder / METRICS):
        kept = ("loss", "consumed_samples")
        yield row["step"], {key: value for key, value in row.items() if key.endswith(kept) or "activation" in key}


def test_callbacks_under_every_layout_and_after_a_stop(tmp_path: Path) -> None:
    cut = random.Random(os.getpid()).randrange(1, STEPS)
    for processes in (1, 2):
        spawn(whole_and_halves, processes, str(tmp_path), cut)
    alone, rows = averages(tmp_path / "single-whole"), dict(numbers(tmp_path / "single-whole"))
    assert [row["consumed_samples"] for row in rows.values()] == [0, 4, 8, 12, 20, 28, 36]
    assert {"val_loss", "val_ema_loss", "activation_rms.blocks.0", "activation_max.blocks.1"} <= rows[2].keys()
    weights = {name.removeprefix("model."): t for name, t in tensors(tmp_path / "single-whole").items()}
    assert any(not torch.equal(value, weights[name.removeprefix(EMA)]) for name, value in alone.items())
    for layout in LAYOUTS:
        whole, halves = tmp_path / f"{layout}-whole", tmp_path / f"{layout}-halves"
        assert apart(averages(whole), alone) <= 1e-7, layout
        for step, found in numbers(whole):
            assert found == pytest.approx(rows[step], abs=1e-5), (layout, step)
        assert equal(tensors(halves), tensors(whole)), f"{layout}, stopped after {cut}"
        assert list(numbers(halves)) == list(numbers(whole)), f"{layout}, stopped after {cut}"
    assert apart(averages(tmp_path / "moved"), alone) <= 1e-7
