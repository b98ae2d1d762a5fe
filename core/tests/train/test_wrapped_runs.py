"""Runs on wrapped and mixed data: the same on every number of ranks, and after a stop at any step."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recipe_core import Batch, DataWrapperSpec, SampleGenerators, Samples, WrapperRun, hookimpl
from recipe_core.errors import ConfigError
from recipe_core.settings.job import resolve
from recipe_core.testing import spawn, toy
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.testing.conformance import wrapped
from recipe_core.testing.conformance.outcome import FailedCheck, SkippedCheck
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run

DATA = (
    "data=mixture", "data.parts.a.use=toy_data", "data.parts.b.use=toy_data", "data.parts.b.seed=77777",
    "data.parts.b.wrappers=above", "data.weights.a=0.6", "data.weights.b=0.4", "wrappers=above_all,noisy",
    "wrapper.above.least=-0.5", "train.steps=6", "model.dropout=0.25",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Above:
    least: float = 0.0


@hookimpl
def register_data_wrappers() -> Iterable[DataWrapperSpec]:
    yield DataWrapperSpec(name="above", build=f"{__name__}:first", config=Above, takes=("vectors",), filters=True)
    yield DataWrapperSpec(name="above_all", build=f"{__name__}:total", config=Above, filters=True)
    yield DataWrapperSpec(name="noisy", build=f"{__name__}:noisy", takes=("vectors",))
    yield DataWrapperSpec(name="centred", build=f"{__name__}:centred", takes=("vectors",))


def first(config: Above, samples: Samples, run: WrapperRun) -> Samples:
    return run.filtered(samples, lambda batch: batch["vectors"][:, 0] > config.least)


def total(config: Above, samples: Samples, run: WrapperRun) -> Samples:
    return run.filtered(samples, lambda batch: batch["vectors"].sum(-1) > config.least - 1)


def noisy(config: object, samples: Samples, run: WrapperRun) -> Samples:
    def change(batch: Batch, generators: SampleGenerators) -> Batch:
        return {**batch, "vectors": batch["vectors"] + generators.rand(6)}

    return run.mapped(samples, change)


def centred(config: object, samples: Samples, run: WrapperRun) -> Samples:
    def change(batch: Batch, generators: SampleGenerators) -> Batch:
        return {**batch, "vectors": batch["vectors"] - batch["vectors"].mean(0)}  # a mistake: of the whole batch

    return run.mapped(samples, change)


def train(out: Path, *words: str) -> None:
    sys.modules.setdefault(__name__, sys.modules[train.__module__])
    run(resolve(toy.registry(sys.modules[__name__]), "toy", ["train.device=cpu", *DATA, *words]), out)


def losses(folder: Path) -> dict[int, float]:
    return {row["step"]: row.get("loss", row.get("val_loss")) for row in read_rows(folder / METRICS)}


def weights(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors(folder).items() if isinstance(tensor, Tensor)}


def test_a_run_resumes_to_the_bit_after_any_step(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    for cut in random.Random(3).sample(range(1, 6), 2):
        train(tmp_path / f"cut-{cut}", f"train.stop_after={cut}")
        train(tmp_path / f"cut-{cut}")
        assert equal(tensors(tmp_path / "whole"), tensors(tmp_path / f"cut-{cut}"))
        assert losses(tmp_path / f"cut-{cut}") == losses(tmp_path / "whole")


def test_it_is_the_same_on_two_ranks_and_resharded(tmp_path: Path) -> None:
    words = ("model.dropout=0", "train.micro_batch=4")
    train(tmp_path / "one", *words)
    spawn(train, 2, tmp_path / "two", *words, "layout=ddp")
    spawn(train, 2, tmp_path / "moved", *words, "layout=ddp", "train.stop_after=2")
    train(tmp_path / "moved", *words)
    expected = losses(tmp_path / "one")
    for name in ("two", "moved"):
        assert losses(tmp_path / name) == pytest.approx(expected, abs=2e-6)
        for key, tensor in weights(tmp_path / "one").items():
            torch.testing.assert_close(weights(tmp_path / name)[key], tensor, atol=1e-5, rtol=1e-4)


def test_the_wrappers_change_what_is_read(tmp_path: Path) -> None:
    train(tmp_path / "all")
    for number, words in enumerate((("wrappers=above_all",), ("wrappers=noisy",), ("data.weights.a=0.5",))):
        train(tmp_path / str(number), *words, "train.stop_after=1")
        assert losses(tmp_path / str(number))[1] != losses(tmp_path / "all")[1]


def test_a_run_does_not_continue_with_another_filter(tmp_path: Path) -> None:
    train(tmp_path, "train.stop_after=2")
    with pytest.raises(ConfigError) as error:
        train(tmp_path, "wrapper.above_all.least=1")
    assert "data.wrappers: above_all(least=0.0), noisy() was recorded, now above_all(least=1.0), noisy()" in str(
        error.value
    )
    accepted = str(error.value).rpartition("train.accept=")[2].split()[0]
    train(tmp_path, "wrapper.above_all.least=1", f"train.accept={accepted}")
    results: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    assert results["step"] == 6


def test_a_filter_that_accepts_nothing_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data wrapper 'above_all' accepts none of 65,536 samples in a row"):
        train(tmp_path, "wrapper.above_all.least=1000")


@dataclass
class Under:
    """This module as a plugin under test, without recipes."""

    folder: Path
    module: str = __name__

    def of(self, kind: object) -> list[Any]:
        return []


def test_conformance_finds_samples_that_depend_on_their_batch(tmp_path: Path) -> None:
    plugin: Any = Under(tmp_path)
    specs = {spec.name: spec for spec in register_data_wrappers()}
    assert wrapped.any_order(plugin, specs["noisy"]) == "train and valid"
    assert wrapped.same_samples(plugin, specs["above"]) == "24 samples on 1, 2, 4 ranks"
    with pytest.raises(FailedCheck, match="vectors of sample 4 of 'train' depends on what was read before"):
        wrapped.any_order(plugin, specs["centred"])
    with pytest.raises(SkippedCheck, match="no recipe of the plugin uses it, and the core's toy gives vectors, labels"):
        wrapped.any_order(plugin, DataWrapperSpec(name="noisy", build="", takes=("pixels",)))
