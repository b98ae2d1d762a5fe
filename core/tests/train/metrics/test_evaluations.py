"""Evaluations of the toy: rows of metrics, training that does not notice them, and errors on one rank or all."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recipe_core import ConfigError, EvaluatedModel, EvaluationSpec, PluginError, Recipe, Train, Use, hookimpl
from recipe_core.hooks.specs import CORE_LOOP
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

Measure = Callable[[], Mapping[str, Any]]
MIXED = ("data=mixture", "data.parts.a.use=toy_data", "data.parts.b.use=toy_data", "data.parts.b.seed=777")


@dataclass(frozen=True, kw_only=True)
class Scale:
    by: float = 1.0


@hookimpl
def register_evaluations() -> Iterable[EvaluationSpec]:
    yield EvaluationSpec(name="hits", build=f"{__name__}:hits", config=Scale, takes=("loss",))
    yield EvaluationSpec(name="restless", build=f"{__name__}:restless", takes=("loss",))
    yield EvaluationSpec(name="apart", build=f"{__name__}:apart", takes=("loss",))
    yield EvaluationSpec(name="apart_too", build=f"{__name__}:apart", takes=("loss",), fatal=False)
    yield EvaluationSpec(name="fails_once", build=f"{__name__}:fails_once", takes=("loss",), fatal=False)
    yield EvaluationSpec(name="fails_in_map", build=f"{__name__}:fails_in_map", takes=("loss",), fatal=False)
    yield EvaluationSpec(name="silent_need", build=f"{__name__}:silent_need")
    yield EvaluationSpec(name="nested", build=f"{__name__}:nested", takes=("loss",))
    yield EvaluationSpec(name="answers", build=f"{__name__}:answers", takes=("generate",))


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    yield Recipe(
        name="alone", summary="a loop of its own", model=Use("toy_model"), data=Use("toy_data"), variants={"tiny": {}},
        run="recipe_core.train.start.watch:watched", train=Train(eval_every=1),
    )  # fmt: skip


def hits(config: Scale, model: EvaluatedModel) -> Measure:
    """The share of right answers, from the output of the model."""

    def right(batch: tuple[int, int]) -> float:
        samples = model.samples.read(*batch)
        return float((model.forward(samples).argmax(-1) == samples["labels"]).float().sum())

    def measure() -> dict[str, float]:
        found = model.map(right, model.samples.batches(), uniform=True)
        assert not model.forward(model.samples.read(0, 1)).requires_grad
        return {"share": config.by * sum(found) / model.samples.count, "step": model.step or 0}

    return measure


def restless(config: object, model: EvaluatedModel) -> Measure:
    """Draws random numbers, and leaves gradients."""

    def measure() -> dict[str, float]:
        module: Any = model.access.parallel.module  # type: ignore[attr-defined]
        module.train()
        batch = model.samples.read(0, 4)
        with torch.enable_grad():
            module(batch).sum().backward()
        return {"torch": float(torch.rand(())), "numpy": np.random.rand(), "python": random.random()}

    return measure


def apart(config: object, model: EvaluatedModel) -> Measure:
    return lambda: {"rank": model.access.data_rank}


def fails_once(config: object, model: EvaluatedModel) -> Measure:
    def measure() -> dict[str, float]:
        if model.step == 4:
            raise ValueError("no luck")
        return {"step": model.step or 0}

    return measure


def fails_in_map(config: object, model: EvaluatedModel) -> Measure:
    def reciprocal(number: int) -> float:
        return 1 / (number - 3)  # an item of one rank

    return lambda: {"sum": sum(model.map(reciprocal, range(4)))}


def silent_need(config: object, model: EvaluatedModel) -> Measure:
    return lambda: model.loss(model.samples.read(0, 1))


def nested(config: object, model: EvaluatedModel) -> Measure:
    """Shares work within shared work: a mistake that gives right numbers."""

    def loss(count: int) -> float:
        return model.mean_loss(model.dataset(count))["loss"]

    return lambda: {f"of_{n}": value for n, value in zip((2, 4, 7), model.map(loss, (2, 4, 7)), strict=True)}


def answers(config: object, model: EvaluatedModel) -> Measure:
    def measure() -> dict[str, float]:
        answer = model.generator()
        found = model.map(
            lambda prompt: answer(prompt)["probabilities"][0], ["1 1 1 1 1 1", "0 0 0 0 0 0", "-1 0 0 0 0 0"]
        )
        return {f"p{number}": value for number, value in enumerate(found)}

    return measure


def job(*words: str, processes: int = 1) -> Job:
    plugin = sys.modules[__name__]
    return checked_job(toy.registry(plugin), "toy", ["train.device=cpu", "train.eval_every=4", *words], processes)


def train(out: Path, *words: str) -> str:
    """Train; return the message of an error."""
    import os

    try:
        run(job(*words, processes=int(os.environ.get("WORLD_SIZE", "1"))), out)
    except PluginError as error:
        return str(error)
    return ""


def numbers(out: Path) -> list[dict[str, float]]:
    rows = [{name: value for name, value in row.items() if "/" in name} for row in read_rows(out / METRICS)]
    return [row for row in rows if row]


def training(out: Path) -> list[dict[str, float]]:
    kept = ("loss", "val_loss", "grad_norm", "step")
    return [{name: value for name, value in row.items() if name in kept} for row in read_rows(out / METRICS)]


def test_training_does_not_notice_them(tmp_path: Path) -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    assert train(tmp_path / "with", "evaluations=restless,hits,held_out", "evaluation.held_out.data.seed=5") == ""
    assert train(tmp_path / "without") == ""
    assert training(tmp_path / "with") == training(tmp_path / "without")
    assert equal(tensors(tmp_path / "with"), tensors(tmp_path / "without"))
    found = numbers(tmp_path / "with")
    assert [row["hits/step"] for row in found] == [0, 4, 8]
    assert found[0].keys() == found[1].keys() == {
        "restless/torch", "restless/numpy", "restless/python", "hits/share", "hits/step", "held_out/loss",
        "held_out/accuracy", "held_out/perplexity",
    }  # fmt: skip
    assert len({row["restless/torch"] for row in found}) == 1  # the same random numbers each time
    assert len({row["restless/python"] for row in found}) == len({row["restless/numpy"] for row in found}) == 1
    accuracies = [row["val_accuracy"] for row in read_rows(tmp_path / "with" / METRICS) if "val_accuracy" in row]
    assert [row["hits/share"] for row in found] == accuracies
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


def test_the_same_on_two_ranks(tmp_path: Path) -> None:
    words = ("evaluations=hits,held_out,answers,nested", "evaluation.held_out.data.seed=5", "model.dropout=0")
    assert train(tmp_path / "single", *words) == ""
    alone = numbers(tmp_path / "single")
    assert "answers/p2" in alone[0]
    for layout in ("ddp", "fsdp", "zero1"):
        assert spawn(train, 2, tmp_path / layout, *words, f"layout={layout}") == ["", ""]
        for row, expected in zip(numbers(tmp_path / layout), alone, strict=True):
            assert row == pytest.approx(expected, abs=1e-6), layout


def test_other_numbers_on_another_rank(tmp_path: Path) -> None:
    messages = spawn(train, 2, tmp_path / "fatal", "evaluations=apart", "layout=ddp")
    expected = (
        "measure returned 'rank' as 1 on rank 1 and as 0 on rank 0; share the work with model.map, which returns all "
        "results on all ranks"
    )
    assert [message.partition(":apart': ")[2] for message in messages] == [expected, expected]
    assert spawn(train, 2, tmp_path / "going", "evaluations=apart_too", "layout=ddp") == ["", ""]


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_an_error_on_one_rank_is_that_of_all(layout: str, tmp_path: Path) -> None:
    assert spawn(train, 2, tmp_path / layout, "evaluations=fails_in_map,hits", f"layout={layout}") == ["", ""]
    assert [list(row) for row in numbers(tmp_path / layout)] == [["hits/share", "hits/step"]] * 3


def test_an_error_that_is_not_fatal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", "evaluations=fails_once,hits") == ""
    shown = capfd.readouterr().err
    assert shown.count("ValueError: no luck (test_evaluations.py, line") == 1
    assert f"warning: evaluation 'fails_once': '{__name__}:fails_once': measure raised" in shown
    assert "; training goes on without it" in shown
    assert [row.get("fails_once/step") for row in numbers(tmp_path / "run")] == [0, None, None]
    assert [row["hits/step"] for row in numbers(tmp_path / "run")] == [0, 4, 8]


def test_what_it_does_not_say_that_it_takes(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "evaluations=silent_need") == (
        "evaluation 'silent_need' uses what it does not say that it takes; register it with takes=('loss',)"
    )


def test_early_stopping_by_an_evaluation(tmp_path: Path) -> None:
    words = (
        "evaluations=hits", "callbacks=early_stopping", "callback.early_stopping.metric=hits/step",
        "callback.early_stopping.patience=2", "train.eval_every=1",
    )  # fmt: skip
    assert train(tmp_path / "run", *words) == ""
    assert numbers(tmp_path / "run")[-1]["hits/step"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluations=text", "evaluation.text.file=x"],
         "train.evaluations: text takes score, and model toy_model scores no texts (its plugin names "
         "no Model.score); leave it out\n  - evaluation.text: file: x: there is no such file; expected a text in "
         "UTF-8"),
        (["evaluations=hits", "train.eval_every=0"],
         "train.evaluations: they are measured with the validation; set train.eval_every"),
        (["evaluations=hit"], "train.evaluations: no evaluation named 'hit'; did you mean 'hits'?"),
        (["evaluation.hits.by=2"],
         "evaluation.hits: this evaluation is not used; add it: train.evaluations=hits"),
        (["evaluations=held_out", "evaluation.held_out.files=x"],
         "evaluation.held_out: dataset 'toy_data' has no setting 'files'"),
        (["evaluations=held_out", "evaluation.held_out.data.width=wide"], "evaluation.held_out: data.width: expected"),
        (["evaluations=held_out", "evaluation.held_out.part=a"],
         "evaluation.held_out: dataset 'toy_data' has no part 'a': it has no parts"),
        ([*MIXED, "evaluations=held_out", "evaluation.held_out.part=c"],
         "evaluation.held_out: dataset 'mixture' has no part 'c': its parts are a, b"),
        ([*MIXED, "evaluations=held_out", "evaluation.held_out.files=x"],
         "evaluation.held_out: dataset 'mixture' has no setting 'files'; to give them to one of its parts, name it (a, "
         "b)"),
        (["evaluations=held_out", "evaluation.held_out.samples=0"],
         "evaluation.held_out.samples: expected at least 1, got 0"),
    ],
)  # fmt: skip
def test_what_a_run_cannot_have(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        job(*words)
    assert message in str(error.value)


def test_a_loop_of_its_own_measures_none() -> None:
    assert register_recipes().__iter__().__next__().run != CORE_LOOP
    with pytest.raises(ConfigError) as error:
        checked_job(toy.registry(sys.modules[__name__]), "alone", ["evaluations=hits"], 1)
    assert "train.evaluations: alone trains in a loop of its own, which measures none; leave them out" in str(
        error.value
    )


def test_held_out_of_a_mixture(tmp_path: Path) -> None:
    """The whole mixture, and the loss of a part, which is that of the part alone."""
    train(tmp_path / "whole", *MIXED, "evaluations=held_out", "evaluation.held_out.samples=8")
    rows = read_rows(tmp_path / "whole" / METRICS)
    assert rows[0]["held_out/loss"] == pytest.approx(rows[0]["val_loss"], abs=1e-6)
    train(tmp_path / "part", *MIXED, "evaluations=held_out", "evaluation.held_out.part=b")
    train(tmp_path / "other", "evaluations=held_out", "evaluation.held_out.data.seed=777")
    assert numbers(tmp_path / "part")[0] == numbers(tmp_path / "other")[0]  # before training
    train(tmp_path / "changed", *MIXED, "evaluations=held_out", "evaluation.held_out.part=b",
          "evaluation.held_out.data.seed=0")  # fmt: skip
    assert numbers(tmp_path / "changed")[0] != numbers(tmp_path / "part")[0]


def test_settings_are_recorded_and_resolved_again() -> None:
    one = job("evaluations=hits,held_out", "evaluation.hits.by=2", "evaluation.held_out.data.seed=3")
    plain = one.as_dict()
    assert plain["evaluation"]["hits"] == {"by": 2.0}
    assert plain["train"]["evaluations"] == ["hits", "held_out"]
    again = resolve(toy.registry(sys.modules[__name__]), plain)
    assert [part.config for part in again.evaluations] == [part.config for part in one.evaluations]
