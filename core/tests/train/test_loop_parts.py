"""Losses, optimizers, schedules and trackers of a plugin, through runs of the toy."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from recipe_core import LossSpec, OptimizerFacts, OptimizerSpec, ScheduleSpec, TrackerSpec, Train, hookimpl, output_of
from recipe_core.cli.show import needs
from recipe_core.errors import ConfigError, PluginError
from recipe_core.layouts.parallel import Batch, Loss
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.testing.toy_parts import Toy
from recipe_core.train.metrics.curves import METRICS, Row, read_rows
from recipe_core.train.optim import Trainable
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

HERE = "loop_parts_of_tests"
sys.modules[HERE] = sys.modules[__name__]  # so that targets name it, here and on spawned ranks


@dataclass(frozen=True, kw_only=True)
class Momentum:
    momentum: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Halving:
    every: int = 2


@dataclass(frozen=True, kw_only=True)
class Notes:
    fails: str = ""
    file: str = "notes.txt"


@hookimpl
def register_optimizers() -> Iterable[OptimizerSpec]:
    yield OptimizerSpec(
        name="momentum", build=f"{HERE}:momentum", facts=f"{HERE}:facts", problems=f"{HERE}:problems", config=Momentum,
        uses=("weight_decay",),
    )  # fmt: skip
    yield OptimizerSpec(name="silent", build=f"{HERE}:momentum", config=Momentum)


@hookimpl
def register_schedules() -> Iterable[ScheduleSpec]:
    yield ScheduleSpec(name="halving", build=f"{HERE}:halving", config=Halving)


@hookimpl
def register_losses() -> Iterable[LossSpec]:
    metrics: Any = {"added": "sum", "largest": "max", "odd": "count"}
    yield LossSpec(name="numbered", build=f"{HERE}:numbered", metrics=metrics)
    yield LossSpec(name="picky", build=f"{HERE}:numbered", takes=("masks",))
    yield LossSpec(name="reader", build=f"{HERE}:reader", needs=("scores",))
    yield LossSpec(name="secret_reader", build=f"{HERE}:reader")


@hookimpl
def register_trackers() -> Iterable[TrackerSpec]:
    yield TrackerSpec(name="notes", build=f"{HERE}:notes", config=Notes)
    yield TrackerSpec(name="fragile", build=f"{HERE}:notes", config=Notes)


def momentum(config: Momentum, trainable: Trainable) -> torch.optim.Optimizer:
    parameters = [parameter for _, parameter in trainable.named]
    decay = trainable.train.weight_decay
    return torch.optim.SGD(parameters, lr=1.0, momentum=config.momentum, weight_decay=decay)


def facts(config: Momentum, train: Train, model: object) -> OptimizerFacts:
    return OptimizerFacts(bytes_per_parameter=1000.0)


def problems(config: Momentum, train: Train, layout: object, model: object) -> Iterator[str]:
    if config.momentum > 0.9:
        yield f"optimizer.momentum: {config.momentum} is too much here"


def halving(config: Halving, train: Train) -> Any:
    return lambda step: train.lr * 0.5 ** (step // config.every)


def numbered(config: object, own: Loss) -> Loss:
    """The model's loss, doubled, and metrics that can be worked out by hand."""

    def loss(output: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        numbers = batch["numbers"]
        return {
            "loss": 2 * own(output, batch)["loss"], "mean": numbers.float().mean(), "added": numbers.sum(),
            "largest": numbers.max(), "odd": (numbers % 2).sum(),
        }  # fmt: skip

    return loss


def reader(config: object, own: Loss) -> Loss:
    """The model's loss of a part of its output."""
    return lambda output, batch: own(output_of(output, "scores"), batch)


class Book:
    """Writes its calls into a file of the run folder; fails on request."""

    def __init__(self, config: Notes, run: Any) -> None:
        self.fails, self.path = config.fails, run.folder / config.file
        if self.fails == "open":
            raise OSError("no server\nhere")
        with self.path.open("a") as file:
            file.write(f"open {run.name} since {run.since}\n")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.fails == "log" and step % 2:
            raise RuntimeError("no answer")
        with self.path.open("a") as file:
            file.write(f"{step} {' '.join(sorted(values))}\n")

    def close(self) -> None:
        if self.fails == "close":
            raise RuntimeError("gone")
        with self.path.open("a") as file:
            file.write("close\n")


def notes(config: Notes, run: Any) -> Book:
    return Book(config, run)


def job_of(*words: str) -> Job:
    return resolve(toy.registry(sys.modules[HERE]), "toy", ("train.device=cpu", *words))


def train(out: str, *words: str) -> list[Row]:
    run(job_of(*words), Path(out))
    return read_rows(Path(out) / "metrics.jsonl")


def column(rows: list[Row], key: str) -> list[float]:
    return [row[key] for row in rows if key in row]


def test_an_optimizer_and_a_schedule_of_a_plugin_train(tmp_path: Path) -> None:
    rows = train(str(tmp_path), "optimizer=momentum", "optimizer.momentum=0.25", "schedule=halving", "schedule.every=3")
    assert column(rows, "lr") == [0.05 * 0.5 ** (step // 3) for step in range(8)]
    by_hand = _by_hand(tmp_path)
    assert column(rows, "loss") == pytest.approx(by_hand, rel=1e-5)


def _by_hand(folder: Path) -> list[float]:
    """The losses of the same run, by torch's own optimizer."""
    from recipe_core.testing.toy_parts import Vectors, build_model
    from recipe_core.train.seeds import mix

    torch.manual_seed(1234)
    module, loss = build_model(toy.ToyModel())
    made = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.25, weight_decay=0.01)
    losses = []
    for step in range(8):
        total = 0.0
        for first in range(8 * step, 8 * step + 8, 2):
            torch.manual_seed(mix(1234, first))
            batch = Vectors(toy.ToyData()).read("train", first, 2)
            value = loss(module(batch), batch)["loss"] / 4
            value.backward()
            total += float(value.detach())
        losses.append(total)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        made.param_groups[0]["lr"] = 0.05 * 0.5 ** (step // 3)
        made.step()
        made.zero_grad()
    return losses


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "zero1"])
def test_it_resumes_and_agrees_on_two_ranks(tmp_path: Path, layout: str) -> None:
    words = ("optimizer=momentum", "schedule=halving", f"layout={layout}", "model.dropout=0", "train.eval_every=0")
    alone = train(str(tmp_path / "alone"), *words[:2], *words[3:])
    spawn(train, 2, str(tmp_path / "two"), *words, "train.stop_after=4")
    rows = spawn(train, 2, str(tmp_path / "two"), *words)[0]
    assert column(rows, "loss") == pytest.approx(column(alone, "loss"), abs=1e-6)


@pytest.mark.parametrize("form", ["dcp", "single"])
def test_an_optimizer_without_states_resumes(tmp_path: Path, form: str) -> None:
    """SGD without momentum has none, and a format may leave out the empty part of the checkpoint."""
    words = ("optimizer=momentum", "optimizer.momentum=0", f"checkpoint={form}", "train.steps=4", "train.eval_every=0")
    whole = column(train(str(tmp_path / "whole"), *words), "loss")
    train(str(tmp_path / "cut"), *words, "train.stop_after=2")
    named = f"train.resume={tmp_path / 'cut/checkpoints/step-2'}"
    assert column(train(str(tmp_path / "named"), *words, named), "loss") == whole[2:]
    assert column(train(str(tmp_path / "cut"), *words), "loss") == whole


def test_one_part_may_be_named_in_two_ways() -> None:
    one, other = job_of("train.optimizer=momentum", "train.schedule=wsd"), job_of("optimizer=momentum", "schedule=wsd")
    assert one.as_dict() == other.as_dict()
    assert (one.train.optimizer, one.train.schedule) == ("momentum", "wsd")
    assert job_of("optimizer.betas=0.5,0.6", "optimizer=lamb", "schedule.min_lr=0.01").train == job_of(
        "train.optimizer=lamb", "train.betas=0.5,0.6", "train.min_lr=0.01"
    ).train  # fmt: skip
    with pytest.raises(ConfigError, match=r"train.optimizer, optimizer: they name two optimizers \(adamw, momentum\)"):
        job_of("train.optimizer=adamw", "optimizer=momentum")


@pytest.mark.parametrize(
    "words",
    [
        (), ("optimizer=momentum", "optimizer.momentum=0.75"), ("schedule=wsd", "schedule.decay_steps=3"),
        ("loss=numbered", "train.optimizer=lamb"), ("train.trackers=notes,tensorboard", "tracker.notes.file=a.txt"),
    ],
)  # fmt: skip
def test_a_job_file_gives_the_same_job(words: tuple[str, ...]) -> None:
    job = job_of(*words)
    again = resolve(toy.registry(sys.modules[HERE]), yaml.safe_load(job.as_yaml()))
    assert again == job
    assert again.trackers == job.trackers


def test_a_job_file_of_before_the_parts_reads_as_before() -> None:
    plain = yaml.safe_load(job_of("train.optimizer=lamb").as_yaml())
    assert not {"optimizer", "schedule", "loss", "tracker"} & plain.keys()
    del plain["train"]["trackers"]
    assert resolve(toy.registry(), plain).as_dict() == job_of("train.optimizer=lamb").as_dict()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.optimizer=momentun"], "optimizer: no optimizer named 'momentun'; did you mean 'momentum'"),
        (["schedule=cosin"], "schedule: no schedule named 'cosin'; did you mean 'cosine'"),
        (["train.trust_clip=2"], r"train.trust_clip: optimizer=adamw does not take it \(those that do: lamb\)"),
        (["optimizer=momentum", "train.precision=bf16", "train.stochastic_rounding=true"],
         r"train.stochastic_rounding: optimizer=momentum does not take it \(those that do: adamw, lamb\)"),
        (["optimizer=momentum", "optimizer.betas=0.1,0.2"], "optimizer.betas: no such setting"),
        (["optimizer=momentum", "optimizer.momentum=0.99"], "optimizer.momentum: 0.99 is too much here"),
        (["train.trackers=nots"], "train.trackers: no tracker named 'nots'; did you mean 'notes'"),
        (["tracker.notes.file=x"], "tracker.notes: this tracker is not used; add it: train.trackers=tensorboard,notes"),
        (["train.trackers=notes", "tracker.notes.flie=x"], "tracker.notes.flie: no such setting; did you mean 'file'"),
        (["schedule=wsd", "schedule.decay_ratio=2"], "schedule.decay_ratio: expected 0 to 1, got 2"),
    ],
)  # fmt: skip
def test_mistakes_end_before_the_run(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_job(toy.registry(sys.modules[HERE]), "toy", ["train.device=cpu", *words])


def test_a_loss_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = toy.registry(sys.modules[HERE])
    data = registry.get("data", "toy_data")
    monkeypatch.setitem(vars(data), "gives", ("vectors", "labels", "numbers"))
    with pytest.raises(ConfigError, match=r"loss.use, data.use: picky takes masks, which toy_data does not give"):
        checked_job(registry, "toy", ["train.device=cpu", "loss=picky"])
    assert checked_job(registry, "toy", ["train.device=cpu", "loss=numbered"]).loss.spec.name == "numbered"


def test_a_loss_says_what_it_needs_of_the_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registry = toy.registry(sys.modules[HERE])
    words = ["train.device=cpu", "loss=reader"]
    monkeypatch.setitem(vars(registry.get("model", "toy_model")), "outputs", ("hidden", "logits"))
    with pytest.raises(ConfigError) as caught:
        checked_job(registry, "toy", words)
    assert str(caught.value) == (
        "model.use, loss.use: reader needs scores, which the output of toy_model does not have (it has hidden, "
        "logits); choose a model and a loss that belong together"
    )
    monkeypatch.setitem(vars(registry.get("model", "toy_model")), "outputs", ("scores",))
    job = checked_job(registry, "toy", words)
    run(job, tmp_path / "read")
    read = [row["loss"] for row in read_rows(tmp_path / "read" / METRICS) if "loss" in row]
    assert read == [row["loss"] for row in train(str(tmp_path / "own")) if "loss" in row]


def test_an_output_that_nobody_declares_ends_the_run_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Toy, "forward", lambda module, batch: {"logits": module.layers[0](batch["vectors"])})
    with pytest.raises(PluginError) as caught:
        train(str(tmp_path / "needs"), "loss=reader")
    assert str(caught.value) == (
        "loss 'reader' needs scores of the output of model 'toy_model', which is a dict with logits; choose a model "
        "and a loss that belong together"
    )
    with pytest.raises(PluginError, match="the output of the model has no 'scores': it is a dict with logits"):
        train(str(tmp_path / "secret"), "loss=secret_reader")


@pytest.mark.parametrize("layout", ["single", "ddp", "fsdp"])
def test_another_loss_and_metrics_reduced_as_they_say(tmp_path: Path, layout: str) -> None:
    """Two micro batches on each of two ranks: their values, and those of the evaluation, are unequal."""
    words = (f"layout={layout}", "loss=numbered", "model.dropout=0", "train.lr=0", "train.clip=0")
    out = str(tmp_path / "run")
    rows = train(out, *words) if layout == "single" else spawn(train, 2, out, *words)[0]
    plain = train(str(tmp_path / "plain"), "model.dropout=0", "train.lr=0")
    assert column(rows, "loss") == pytest.approx([2 * value for value in column(plain, "loss")], rel=1e-5)
    assert column(rows, "val_loss") == pytest.approx([2 * value for value in column(plain, "val_loss")], rel=1e-5)
    for row in rows[1:]:
        numbers = range(8 * row["step"] - 8, 8 * row["step"])
        assert (row["mean"], row["added"], row["largest"]) == (sum(numbers) / 8, sum(numbers), max(numbers))
        assert row["odd_per_second"] == pytest.approx(row["samples_per_second"] / 2)
        assert "odd" not in row
    evaluated = [row for row in rows if "val_mean" in row]
    assert [row["step"] for row in evaluated] == [0, 4, 8]
    for row in evaluated:
        assert (row["val_mean"], row["val_added"], row["val_largest"]) == (3.5, 28.0, 7.0)
        assert not [key for key in row if key.startswith("val_odd")]


def test_check_counts_what_an_optimizer_keeps(tmp_path: Path) -> None:
    def said(*words: str) -> str:
        return " ".join(needs(job_of(*words), 1, tmp_path).split())

    assert "optimizer states 74 kB" in said("optimizer=momentum")  # 74 parameters of 1000 bytes
    assert "optimizer states not known: silent says nothing of itself (facts)" in said("optimizer=silent")


def test_trackers_follow_a_run_and_its_continuation(tmp_path: Path) -> None:
    words = ("train.trackers=notes", "train.log_every=2")
    train(str(tmp_path), *words, "train.stop_after=4")
    train(str(tmp_path), *words)
    lines = (tmp_path / "notes.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["open", "0", "2", "4", "close", "open", "6", "8", "close"]
    assert [line for line in lines if "open" in line] == ["open toy since 0", "open toy since 4"]
    assert lines[1] == "0 valid/accuracy valid/loss"
    tags = lines[3].split()[1:]
    assert {"train/loss", "train/lr", "train/grad_norm", "valid/loss", "speed/seconds"} <= set(tags)
    assert {tag.partition("/")[0] for tag in tags} == {"train", "valid", "speed", "system"}
    assert not (tmp_path / "tensorboard").exists()


def test_the_closing_words_name_the_curves_where_they_were_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipe_core.train.metrics.report.find_spec", lambda name: object())
    train(str(tmp_path / "with"), "train.steps=1")
    said = capsys.readouterr().out
    assert "(metrics.jsonl, tensorboard/, checkpoints/)" in said
    assert "tensorboard --logdir" in said
    assert f"recipe report {os.path.relpath(tmp_path / 'with')} --html" in said
    assert "recipe-core[report]" not in said
    monkeypatch.setattr("recipe_core.train.metrics.report.find_spec", lambda name: None)
    train(str(tmp_path / "without"), "train.steps=1", "train.trackers=")
    said = capsys.readouterr().out
    assert "tensorboard" not in said
    assert "--html    # a page; needs recipe-core[report]" in said


def test_the_start_of_a_run_is_followed_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECIPE_TERMINAL", "1")
    train(str(tmp_path / "x"), "train.steps=1")
    lines = [line.split("s  ") for line in capsys.readouterr().err.splitlines() if line.endswith(" ...")]
    assert [text for _, text in lines] == ["building the model ...", "opening the data ..."]
    seconds = [float(stamp) for stamp, _ in lines]
    assert 0 < seconds[0] <= seconds[1]


def test_only_rank_0_opens_a_tracker(tmp_path: Path) -> None:
    spawn(train, 2, str(tmp_path), "train.trackers=notes")
    assert (tmp_path / "notes.txt").read_text().count("open") == 1


@pytest.mark.parametrize("fails", ["open", "log", "close"])
def test_a_tracker_that_raises_never_costs_the_run(
    tmp_path: Path, fails: str, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ("train.trackers=fragile,notes", f"tracker.fragile.fails={fails}", "tracker.fragile.file=other.txt")
    rows = train(str(tmp_path), *both)
    assert column(rows, "loss") == column(train(str(tmp_path / "plain")), "loss")
    assert (tmp_path / "notes.txt").read_text().splitlines()[-1] == "close"  # the other one had everything
    lines = [line for line in capsys.readouterr().err.splitlines() if "tracker" in line]
    said = [re.sub(r" \(test_loop_parts.py, line \d+\)", "", line) for line in lines]
    assert any("test_loop_parts.py, line" in line for line in lines)
    assert (
        said
        == {
            "open": [
                "warning: tracker fragile: cannot be opened (OSError: no server here); training goes on without it"
            ],
            "log": [
                "warning: tracker fragile: failed at step 1 (RuntimeError: no answer); training goes on",
                "warning: tracker fragile: it lacks 4 rows; metrics.jsonl has them",
            ],
            "close": ["warning: tracker fragile: cannot be closed (RuntimeError: gone)"],
        }[fails]
    )
