"""A loss of another plugin on a GPT, under layouts that divide it: what one process computes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from recipe_core import LossSpec, hookimpl
from recipe_core.hooks.registry import installed, load
from recipe_core.layouts.parallel import Batch, Loss
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import METRICS, Row, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

HERE = "losses_of_tests"
sys.modules[HERE] = sys.modules[__name__]  # so that targets name it, here and on spawned ranks
LAYOUTS = {"fsdp": "layout=fsdp", "tp": "layout=tp", "pp": "layout=pp"}
WORDS = [
    "loss=halved", "model.positions=32", "data.sequence=32", "train.steps=6", "train.stop_after=4", "train.log_every=1",
    "train.eval_every=2",
]  # fmt: skip


@hookimpl
def register_losses() -> Iterable[LossSpec]:
    metrics: Any = {"added": "sum", "largest": "max", "even": "count"}
    yield LossSpec(name="halved", build=f"{HERE}:halved", takes=("tokens",), metrics=metrics)


def halved(config: object, own: Loss) -> Loss:
    """Half of the model's loss, and numbers of the batch."""

    def loss(output: Any, batch: Batch) -> Mapping[str, Tensor]:
        tokens = batch["tokens"]
        return {
            "loss": own(output, batch)["loss"] / 2, "added": tokens.sum(), "largest": tokens.max(),
            "even": (tokens % 2 == 0).sum(),
        }  # fmt: skip

    return loss


def in_turn(cases: Mapping[str, Sequence[str]], folder: str) -> None:
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # not in every release

    registry = load([*installed(), ("losses", lambda: sys.modules[HERE])])
    store = os.environ.get("RECIPE_STORE")
    for number, (name, words) in enumerate(cases.items()):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        job = checked_job(registry, "megatron_gpt:tiny", [*WORDS, *words], int(os.environ["WORLD_SIZE"]))
        run(job, Path(folder, name))
        _clear_sharding_prop_cache()


def exact(rows: list[Row]) -> list[tuple[float, ...]]:
    """Numbers of the batches, which no order of additions changes."""
    keys = ("added", "largest", "val_added", "val_largest")
    return [(row["step"], *(row[key] for key in keys if key in row)) for row in rows]


def test_every_layout_computes_it_as_one_process(tmp_path: Path) -> None:
    spawn(in_turn, 1, {"single": ["layout=single"], "own": ["layout=single", "loss=model"]}, str(tmp_path))
    spawn(in_turn, 2, {name: [word] for name, word in LAYOUTS.items()}, str(tmp_path))
    found = {name: read_rows(tmp_path / name / METRICS) for name in ("single", "own", *LAYOUTS)}
    alone = found["single"]
    assert alone[0]["val_loss"] == pytest.approx(found["own"][0]["val_loss"] / 2, rel=1e-6)
    assert alone[1]["loss"] == pytest.approx(found["own"][1]["loss"] / 2, rel=1e-6)
    assert len({row["largest"] for row in alone[1:]} | {row["added"] for row in alone[1:]}) > 2
    for name in LAYOUTS:
        rows = found[name]
        assert exact(rows) == exact(alone), name
        for key in ("loss", "val_loss", "grad_norm"):
            assert [row[key] for row in rows if key in row] == pytest.approx(
                [row[key] for row in alone if key in row], abs=1e-5
            ), (name, key)
        shares = [[row["even_per_second"] / row["samples_per_second"] for row in some[1:]] for some in (rows, alone)]
        assert shares[0] == pytest.approx(shares[1], rel=1e-9), name
