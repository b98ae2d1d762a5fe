"""Callbacks of a plugin and of the core, through runs of the toy."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from recipe_core import Callback, CallbackRun, CallbackSpec, CheckpointFormat, Recipe, Train, Use, hookimpl
from recipe_core.checkpoint.convert.convert import convert
from recipe_core.checkpoint.locate import Request
from recipe_core.cli.show import needs
from recipe_core.errors import CheckpointError, ConfigError, PluginError
from recipe_core.hooks.specs import NoSettings, Part
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.testing.checkpoints import tensors
from recipe_core.train.callbacks.callbacks import MOMENTS, Callbacks
from recipe_core.train.callbacks.settings import BatchRamp
from recipe_core.train.metrics.curves import Row, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

HERE = "callbacks_of_tests"
sys.modules[HERE] = sys.modules[__name__]  # so that targets name it, here and on spawned ranks
CALLS: list[str] = []


@dataclass(frozen=True, kw_only=True)
class Failing:
    at: str = ""


@hookimpl
def register_callbacks() -> Iterable[CallbackSpec]:
    yield CallbackSpec(name="diary", build=f"{HERE}:Diary", saves=True)
    yield CallbackSpec(name="failing", build=f"{HERE}:Fails", config=Failing, saves=True)
    yield CallbackSpec(name="harmless", build=f"{HERE}:Fails", config=Failing, fatal=False)
    yield CallbackSpec(name="nothing", build=f"{HERE}:nothing")
    yield CallbackSpec(name="greedy", build=f"{HERE}:Greedy")
    yield CallbackSpec(name="again", build=f"{HERE}:Diary")


@hookimpl
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    yield CheckpointFormat(name="older", build="recipe_core.checkpoint.formats.single:Single")


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    own = next(iter(toy.register_recipes()))
    yield replace(own, name="apart", model=Use("toy_model"), run=f"{HERE}:run_apart")


class Diary(Callback):
    """Writes down its calls, and counts steps in its state."""

    def __init__(self, config: object, run: CallbackRun) -> None:
        self.run, self.counted = run, torch.zeros(())
        CALLS.clear()

    def on_start(self, step: int) -> None:
        CALLS.append(f"on_start {step} {int(self.counted)}")

    def before_step(self, step: int) -> None:
        CALLS.append(f"before_step {step}")

    def before_optimizer(self, step: int) -> None:
        gradients = sum(p.grad is not None for _, p in self.run.model.named_parameters())
        CALLS.append(f"before_optimizer {step} {gradients}")

    def after_step(self, step: int) -> None:
        self.counted += 1
        CALLS.append(f"after_step {step}")

    def metrics(self, step: int) -> Mapping[str, float]:
        CALLS.append(f"metrics {step}")
        return {"counted": int(self.counted)}

    def evaluations(self) -> Mapping[str, AbstractContextManager[Any]]:
        return {"again": self.again()}

    @contextmanager
    def again(self) -> Iterator[None]:
        CALLS.append("again")
        yield

    def after_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        CALLS.append(f"after_evaluation {step} {' '.join(values)}")

    def before_save(self, step: int) -> None:
        CALLS.append(f"before_save {step}")

    def on_end(self, step: int) -> None:
        CALLS.append(f"on_end {step}")

    def state(self) -> dict[str, Any]:
        return {"counted": self.counted}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.counted = state["counted"].clone()


class Fails(Callback):
    """Raises at one of its moments."""

    def __init__(self, config: Failing, run: CallbackRun) -> None:
        for moment in (*MOMENTS, "state"):
            if moment == config.at:
                setattr(type(self), moment, self.fail)
            elif moment in vars(type(self)):
                delattr(type(self), moment)
        if config.at == "build":
            self.fail()

    @staticmethod
    def fail(*arguments: object) -> Any:
        raise ZeroDivisionError("oh")


class Greedy(Callback):
    """Adds a column that is taken."""

    def __init__(self, config: object, run: CallbackRun) -> None:
        pass

    def metrics(self, step: int) -> Mapping[str, float]:
        return {"loss": 0.0}


def nothing(config: object, run: CallbackRun) -> object:
    return object()


def run_apart(job: Job, out: Path) -> dict[str, Any]:
    raise AssertionError("checks come first")


def job_of(*words: str, recipe: str = "toy") -> Job:
    return resolve(toy.registry(sys.modules[HERE]), recipe, ("train.device=cpu", *words))


def checked(*words: str, recipe: str = "toy") -> Job:
    return checked_job(toy.registry(sys.modules[HERE]), recipe, ("train.device=cpu", *words))


def train(out: Path, *words: str) -> list[Row]:
    run(job_of(*words), out)
    return read_rows(out / "metrics.jsonl")


def column(rows: list[Row], key: str) -> list[float]:
    return [row[key] for row in rows if key in row]


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def test_the_moments_come_in_their_order(tmp_path: Path) -> None:
    rows = train(tmp_path, "callbacks=diary", "train.steps=3", "train.eval_every=2", "train.log_every=2")
    evaluated = "val_loss val_accuracy val_again_loss val_again_accuracy"
    assert [
        "on_start 0 0", "again", f"after_evaluation 0 {evaluated}",
        "before_step 1", "before_optimizer 1 4", "after_step 1",
        "before_step 2", "before_optimizer 2 4", "after_step 2", "metrics 2",
        "again", f"after_evaluation 2 {evaluated}",
        "before_step 3", "before_optimizer 3 4", "after_step 3", "metrics 3",
        "again", f"after_evaluation 3 {evaluated}",
        "on_end 3", "before_save 3",
    ] == CALLS  # fmt: skip
    assert column(rows, "counted") == [2, 3]
    assert column(rows, "val_again_loss") == column(rows, "val_loss")


def test_a_state_goes_on_and_a_run_may_add_and_drop_callbacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = train(tmp_path / "plain", "train.steps=8")
    words = ("train.steps=8", "train.keep=0")
    train(tmp_path / "run", *words, "train.stop_after=2")
    assert not any("callbacks" in name for name in tensors(tmp_path / "run"))
    train(tmp_path / "run", *words, "callbacks=diary,ema", "callback.ema.decay=0.5", "train.stop_after=2")
    assert "callback diary begins now: the checkpoint has no state of it" in capsys.readouterr().out
    averaged = tensors(tmp_path / "run/checkpoints/step-4")
    assert (CALLS[0], int(averaged["callbacks.diary.counted"])) == ("on_start 2 0", 2)
    step = {n: tensors(tmp_path / f"run/checkpoints/step-{n}") for n in (2, 4)}
    name = "layers.0.weight"
    third = tensors_after_three(tmp_path / "third")[f"model.{name}"]
    by_hand = 0.25 * step[2][f"model.{name}"] + 0.25 * third + 0.5 * step[4][f"model.{name}"]
    torch.testing.assert_close(averaged[f"callbacks.ema.weights.{name}"], by_hand)
    train(tmp_path / "run", *words, "callbacks=diary", "train.stop_after=2")
    assert CALLS[0] == "on_start 4 2"
    rows = train(tmp_path / "run", *words)
    assert not any("callbacks" in name for name in tensors(tmp_path / "run"))
    assert column(rows, "loss") == column(plain, "loss")


def tensors_after_three(out: Path) -> dict[str, torch.Tensor]:
    train(out, "train.steps=8", "train.stop_after=3")
    return tensors(out)


def test_a_state_of_another_run_is_taken_with_its_weights(tmp_path: Path) -> None:
    train(tmp_path / "first", "callbacks=diary", "train.steps=4", "train.stop_after=2")
    named = f"train.resume={tmp_path / 'first'}"
    train(tmp_path / "second", "callbacks=diary", "train.steps=4", named)
    assert CALLS[0] == "on_start 2 2"
    train(tmp_path / "third", "train.steps=4", named)  # without it


@pytest.mark.parametrize("ranks", [1, 2])
def test_early_stopping_ends_a_run_and_its_continuation(
    tmp_path: Path, ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "callbacks=early_stopping", "callback.early_stopping.patience=2", "callback.early_stopping.least_change=10",
        "train.eval_every=1", "train.keep=0",
    )  # fmt: skip
    for _ in range(2):  # the second ends before a step
        spawn(train, ranks, tmp_path, *words) if ranks > 1 else train(tmp_path, *words)
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-2"]
        assert column(read_rows(tmp_path / "metrics.jsonl"), "step") == [0, 1, 2]
        found = results(tmp_path)
        assert (found["exit_code"], found["stopped"], found["step"], found["steps"]) == (0, None, 2, 8)
        first = found["first_val_loss"]
        reason = f"early_stopping: val_loss has not been better than {first:.4f} of step 0 in 2 evaluations"
        assert found["ended_by"] == reason
    if ranks == 1:
        said = capsys.readouterr().out
        assert f"toy ended at step 2 of 8 by {reason}" in said
        assert "continue to step" not in said


def test_early_stopping_may_look_for_the_highest(tmp_path: Path) -> None:
    every = column(train(tmp_path / "plain", "train.eval_every=1"), "val_accuracy")
    last = next(step for step, value in enumerate(every) if step and value <= max(every[:step]))
    own = ("metric=val_accuracy", "best=highest", "patience=1")
    words = ("callbacks=early_stopping", *(f"callback.early_stopping.{word}" for word in own), "train.eval_every=1")
    assert column(train(tmp_path / "run", *words), "val_accuracy") == every[: last + 1]
    assert (last < 8) == ("ended_by" in results(tmp_path / "run"))
    message = r"callback.early_stopping.metric: the evaluations have no 'f1' \(there are: val_loss, val_accuracy\)"
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "other", *words, "callback.early_stopping.metric=f1")


def test_an_evaluation_that_a_signal_left_out_may_end_the_run(tmp_path: Path) -> None:
    words = (
        "callbacks=early_stopping",
        "callback.early_stopping.patience=1",
        "callback.early_stopping.least_change=10",
    )
    train(tmp_path, *words, "train.eval_every=4", "train.stop_after=2")
    for _ in range(2):
        rows = train(tmp_path, *words, "train.eval_every=2")
        assert (column(rows, "step")[-1], len(column(rows, "val_loss"))) == (2, 2)
        assert results(tmp_path)["ended_by"].startswith("early_stopping: val_loss has not been better than")


@pytest.mark.parametrize("moment", ["build", *MOMENTS, "state"])
def test_a_callback_that_raises_is_named(tmp_path: Path, moment: str) -> None:
    message = (
        rf"callback 'failing': {moment} raised ZeroDivisionError: oh \(test_callbacks.py, line \d+\); fix the plugin"
    )
    with pytest.raises(PluginError, match=message):
        train(tmp_path, "callbacks=failing", f"callback.failing.at={moment}")


@pytest.mark.parametrize("moment", ["before_step", "after_step", "metrics", "evaluations", "before_save"])
def test_training_goes_on_without_one_that_is_not_fatal(
    tmp_path: Path, moment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = train(tmp_path / "run", "callbacks=harmless", f"callback.harmless.at={moment}")
    assert column(rows, "loss") == column(train(tmp_path / "plain"), "loss")
    said = [line for line in capsys.readouterr().err.splitlines() if "harmless" in line]
    assert len(said) == 1
    assert said[0].startswith(f"warning: callback 'harmless': {moment} raised ZeroDivisionError: oh")
    assert said[0].endswith("; training goes on without it")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("diary,again", r"callback 'again': evaluations returned 'again', which another one has, too"),
        ("nothing", r"callback 'nothing': build returned object; expected a recipe_core.Callback"),
        ("greedy", r"callback 'greedy': metrics returned 'loss', which is another column's name"),
    ],
)
def test_answers_that_are_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        train(tmp_path, f"callbacks={name}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["callbacks=emma"], "train.callbacks: no callback named 'emma'; did you mean 'ema'"),
        (["callback.ema.decay=0.5"], "callback.ema: this callback is not used; add it: train.callbacks=ema"),
        (["callbacks=ema", "callback.ema.decay=1"], r"callback.ema.decay: expected 0 to below 1, got 1"),
        (
            ["callbacks=early_stopping", "train.eval_every=0"],
            "callback.early_stopping: it needs evaluations; set train.ev",
        ),
        (["callbacks=ema", "checkpoint=older"], "checkpoint.use: older does not hold the state of callback ema"),
        (["callbacks=activations", "train.compile=true"], "callback.activations: .*; set train.compile=false"),
        (
            ["callbacks=batch_ramp", "callback.batch_ramp.start=9"],
            "start: 9 is more than train.global_batch, which is 8",
        ),
    ],
)
def test_mistakes_in_settings(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["callbacks=activations", "callback.activations.modules=blocks.*"],
            "modules: 'blocks.\\*' matches no submodule",
        ),
        (
            ["callbacks=batch_ramp", "callback.batch_ramp.start=3"],
            "batch_ramp.start: 3 is no multiple of 2, a micro batch",
        ),
    ],
)
def test_mistakes_that_only_the_run_sees(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, *words)


def test_a_recipe_with_a_loop_of_its_own_refuses_them() -> None:
    with pytest.raises(ConfigError, match=r"train.callbacks: apart trains in a loop of its own, which calls none"):
        checked("callbacks=ema", recipe="apart")


def test_a_job_file_gives_the_same_callbacks() -> None:
    job = job_of("callbacks=ema,early_stopping", "callback.ema.decay=0.5")
    again = resolve(toy.registry(sys.modules[HERE]), yaml.safe_load(job.as_yaml()))
    assert again == job
    assert [part.spec.name for part in again.callbacks] == ["ema", "early_stopping"]
    assert job_of("train.callbacks=ema,early_stopping", "callback.ema.decay=0.5") == job
    assert "callback" not in yaml.safe_load(job_of().as_yaml())
    fewer = resolve(toy.registry(sys.modules[HERE]), yaml.safe_load(job.as_yaml()), ["callbacks=early_stopping"])
    assert list(yaml.safe_load(fewer.as_yaml())["callback"]) == ["early_stopping"]


def test_the_memory_of_a_state_is_known_beforehand(tmp_path: Path) -> None:
    def states(*words: str) -> str:
        return " ".join(needs(job_of(*words), 1, tmp_path).split())

    assert "optimizer states 592 B" in states()  # two moments of 74 parameters, 4 bytes each
    assert "optimizer states 888 B" in states("callbacks=ema")


def test_a_growing_batch_has_megatrons_sizes() -> None:
    """Of ``--rampup-batch-size 4 4 24`` with a global batch of 16: an increment each 8 samples."""
    from recipe_core.train.callbacks.batch_ramp import GrowingBatch

    class Here:
        class run:
            train, dp_size, mesh = Train(global_batch=16, micro_batch=2), 2, None

        class engine:
            traced = False

    ramp = GrowingBatch(BatchRamp(start=4, by=4, samples=24), Here)  # type: ignore[arg-type]
    consumed, sizes = 0, []
    for _ in range(7):
        sizes.append(ramp.global_batch(consumed))
        consumed += sizes[-1]
    assert sizes == [4, 4, 8, 12, 16, 16, 16]


def test_unfreezing_leaves_frozen_weights_as_they_were(tmp_path: Path) -> None:
    words = (
        "callbacks=unfreezing",
        "callback.unfreezing.every=2",
        "train.keep=0",
        "train.save_every=1",
        "train.steps=4",
    )
    train(tmp_path, *words)
    steps = [tensors(tmp_path / f"checkpoints/step-{step}") for step in (1, 2, 3, 4)]
    first, last = ([one[f"model.layers.{block}.weight"] for one in steps] for block in (0, 1))
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert not torch.equal(last[0], last[1])


def test_no_callback_costs_a_look_into_an_empty_dict() -> None:
    callbacks = Callbacks()
    assert (callbacks.state(), callbacks.evaluations(), callbacks.metrics({}), callbacks.global_batch(0)) == (
        {},
        {},
        {},
        None,
    )
    callbacks.build(
        [Part(spec, Failing()) for spec in register_callbacks() if spec.name == "failing"], _no_run(), print
    )
    assert not callbacks._at


def _no_run() -> CallbackRun:
    nothing: Any = None
    return CallbackRun(run=nothing, model=nothing, optimizer=nothing, engine=nothing, folder=Path())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_averaged_weights_are_exported(tmp_path: Path, precision: str) -> None:
    registry = toy.registry(sys.modules[HERE])
    train(tmp_path / "run", "callbacks=ema", "callback.ema.decay=0.5", f"train.precision={precision}")
    request = Request(
        source=tmp_path / "run", target=tmp_path / "out", to=Part(registry.get("checkpoint", "single"), NoSettings()),
        recipe="toy", drop_optimizer=True, weights_of="ema",
    )  # fmt: skip
    rows = dict(convert(registry, request))
    assert rows["weights"] == "those that the callback ema kept"
    before, after = tensors(tmp_path / "run"), tensors(tmp_path / "out")
    assert [name for name in after if not name.startswith("model.")] == []
    for name, value in after.items():
        average = before[name.replace("model.", "callbacks.ema.weights.")]
        assert average.dtype == torch.float32
        assert value.dtype == before[name].dtype
        assert torch.equal(value, average.to(value.dtype))
    with pytest.raises(CheckpointError, match=r"no weights of a callback 'emma' \(callbacks with weights: ema\)"):
        convert(registry, replace(request, target=tmp_path / "other", weights_of="emma"))
