"""The answers of a model whose likelihoods are known, in a run; and the plugin conforms."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recipe_core import (
    Batch,
    ConfigError,
    DataFacts,
    Dataset,
    Evaluation,
    Loss,
    Model,
    Recipe,
    Run,
    Scorer,
    Train,
    TrainedModel,
    Use,
    hookimpl,
)
from recipe_core.settings.job import resolve
from recipe_core.testing import PluginConformance, toy
from recipe_core.train.run import run

plugin = pytest.importorskip("recipe_cloze.plugin", reason="the example is not installed")
LETTERS = 128


class TestCloze(PluginConformance):
    plugin = "recipe_cloze.plugin"


@dataclass(frozen=True)
class Nothing:
    pass


class Letters(nn.Module):
    """Next characters by their frequency alone: an 'a' is e times as likely as any other."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(LETTERS))
        self.logits.data[ord("a")] = 1.0

    def forward(self, batch: Batch) -> Tensor:
        return self.logits.expand(*batch["tokens"].shape, LETTERS)


def build(config: Nothing) -> tuple[nn.Module, Loss]:
    def loss(output: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": 0.0 * output.sum()}

    return Letters(), loss


def score(trained: TrainedModel, options: Evaluation) -> Scorer:
    return Scorer(
        encode=lambda text: list(text.encode()), first=0, window=8, logits=lambda ids: trained.module({"tokens": ids})
    )


class Zeros:
    def read(self, split: str, start: int, count: int) -> Batch:
        return {"tokens": torch.zeros(count, 4, dtype=torch.int64)}


def zeros(config: Nothing, run: Run) -> Zeros:
    return Zeros()


def facts(config: Nothing) -> DataFacts:
    return DataFacts(sequence=4)


@hookimpl
def register_models() -> Iterable[Model]:
    yield Model(name="letters", build=f"{__name__}:build", score=f"{__name__}:score", config=Nothing)


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    yield Dataset(name="zeros", build=f"{__name__}:zeros", facts=f"{__name__}:facts", config=Nothing)


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    train = Train(steps=1, global_batch=2, micro_batch=2, eval_every=1, eval_samples=2, lr=0.0)
    yield Recipe(name="letters", summary="", model=Use("letters"), data=Use("zeros"), train=train)


def measured(folder: Path, *words: str) -> dict[str, float]:
    registry = toy.registry(plugin, sys.modules[__name__])
    run(resolve(registry, "letters", ["train.device=cpu", "evaluations=cloze", *words]), folder / "run")
    first = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[0])
    return {name: value for name, value in first.items() if "/" in name}


@pytest.mark.parametrize(("per_token", "accuracy"), [("true", 0.5), ("false", 1.0)])
def test_accuracy_and_margin(per_token: str, accuracy: float, tmp_path: Path) -> None:
    file = tmp_path / "questions.tsv"
    file.write_text("one\taa\tbb\ntwo\ta\taab\n" if per_token == "false" else "one\taa\tbb\ntwo\tb\ta\n")
    numbers = measured(tmp_path, f"evaluation.cloze.file={file}", f"evaluation.cloze.per_token={per_token}")
    assert numbers["cloze/accuracy"] == accuracy
    if per_token == "true":
        assert numbers["cloze/margin"] == pytest.approx((1.0 - 1.0) / 2, abs=1e-6)
    else:
        rest = math.log(LETTERS - 1 + math.e)  # the log-likelihood of an 'a' is 1 - rest, of others -rest
        assert numbers["cloze/margin"] == pytest.approx((2.0 + (1 - rest) - (2 - 3 * rest)) / 2, abs=1e-5)


def test_a_line_that_is_no_question(tmp_path: Path) -> None:
    (tmp_path / "questions.tsv").write_text("one\taa\tbb\ntwo\ta\n")
    with pytest.raises(ConfigError, match=r"questions\.tsv, line 2: expected a beginning, its right continuation"):
        measured(tmp_path, f"evaluation.cloze.file={tmp_path / 'questions.tsv'}")
