"""Settings that do not do what they are for are named, with the reason; those of the recipe itself seldom are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from recipe_core import DataFacts, Dataset, OptimizerSpec, hookimpl
from recipe_core.cli.show import needs
from recipe_core.hooks.train import remarked
from recipe_core.settings.job import resolve
from recipe_core.settings.remarks import remarks_of
from recipe_core.testing import toy


def remarks(*words: str) -> list[str]:
    return remarks_of(resolve(toy.registry(), "toy", words))


WARMUP = "the warm-up takes all of the 8 steps, so that the rate never stays at train.lr"
RISING = "it is above train.lr=0.05, so that the rate rises where the schedule should let it fall"
END = "the run ends before it; it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", []),
        ("train.steps=2", []),  # the recipe's own interval of evaluations is beyond it
        ("train.warmup_steps=7", []),
        ("train.warmup_steps=8", [f"train.warmup_steps=8: {WARMUP}"]),
        ("train.warmup_ratio=1", [f"train.warmup_ratio=1.0: {WARMUP}"]),
        ("train.min_lr=0.05", []),
        (
            "train.min_lr=0.1",
            [f"train.min_lr=0.1: {RISING}"],
        ),
        ("schedule=constant", []),
        ("schedule=constant train.min_lr=0.1", ["train.min_lr=0.1: schedule=constant does not use it"]),
        ("train.schedule_power=2", ["train.schedule_power=2.0: schedule=cosine does not use it"]),
        ("train.schedule_power=2 schedule=polynomial", []),
        ("train.stop_after=8", []),
        ("train.stop_after=9", ["train.stop_after=9: the schedule ends before it"]),
        ("train.eval_every=9", [f"train.eval_every=9: {END} evaluates at its start and end"]),
        ("train.save_every=9", [f"train.save_every=9: {END} saves at its end alone"]),
        ("train.golden_tolerance=1", ["train.golden_tolerance=1.0: there is no train.golden to compare with"]),
    ],
)
def test_each_is_named(words: str, said: list[str]) -> None:
    assert remarks(*words.split()) == said


def test_an_evaluation_of_more_samples_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "data_facts", lambda config: DataFacts(sequence=config.width, valid_samples=8))
    assert remarks() == []
    assert remarks("train.eval_samples=12") == [
        "train.eval_samples=12: there are 8, so that an evaluation takes some of them several times"
    ]
    assert remarks("train.eval_samples=12", "train.eval_every=0") == []


def test_optimizers_and_parts_of_plugins_take_part(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Data(toy.ToyData):
        depth: int = remarked(3, lambda data: f"a vector has {data.width}" if data.depth > data.width else "")

    class Own:
        @hookimpl
        def register_datasets(self) -> list[Dataset]:
            where = "recipe_core.testing.toy_parts:build_data"
            facts = "recipe_core.testing.toy:data_facts"
            return [Dataset(name="deep", build=where, facts=facts, config=Data, summary="x")]

        @hookimpl
        def register_optimizers(self) -> list[OptimizerSpec]:
            return [OptimizerSpec(name="plain", build="recipe_core.testing.toy_parts:build_data", summary="x")]

    job = resolve(toy.registry(Own()), "toy", ["data=deep", "data.depth=100", "optimizer=plain", "train.eps=1e-6"])
    assert remarks_of(job) == [
        "train.eps=1e-06: optimizer=plain does not use it",
        f"data.depth=100: a vector has {toy.ToyData().width}",
    ]
    assert "note                train.eps=1e-06: optimizer=plain" in needs(job, 1, tmp_path)
