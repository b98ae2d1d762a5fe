"""Skipping diverging steps, rolling back, and ``train.resume=step-N``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

from recipe_core.checkpoint.manifest import Manifest
from recipe_core.errors import CheckpointError, ExitCode
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import read_rows
from recipe_hf_finetune.trainer.seed_run import _position
from recipe_hf_finetune.trainer.step_skipper import SKIPPED_STEPS

pytestmark = pytest.mark.filterwarnings("default")
ARGS = (
    "data.task=mrpc", "data.max_length=24", "model.dropout=0.1", "train.epochs=3", "train.batch_per_process=4",
    "train.micro_batch=2", "train.lr=1e-3", "train.eval_every=0", "train.eval_samples=100", "train.log_every=1",
)  # fmt: skip
BAD = 10
"""Step, counted from 1, whose batch is poisoned: the third of seven in the second epoch."""


class Batches:
    """Patches of the Trainer, which reads the batches of a step with ``get_batch_samples``.

    ``poisoned``: steps, from 1, whose last micro batch has a NaN loss; ``left_out``: steps whose batches are missing in
    the data; only ``rank`` reads bad ones.
    """

    def __init__(self, poisoned: range = range(0), left_out: range = range(0), rank: int = 0) -> None:
        self.poisoned, self.left_out, self.rank = poisoned, left_out, rank

    def install(self, patch: pytest.MonkeyPatch) -> None:
        get, compute = Trainer.get_batch_samples, Trainer.compute_loss

        def reading(trainer: Any, iterator: Iterator[Any], count: int, *rest: Any, **kwargs: Any) -> Any:
            def next_one() -> tuple[int, Any]:
                position = trainer.position = trainer.__dict__.setdefault("position", start(trainer)) + 1
                return position, get(trainer, iterator, count, *rest, **kwargs)

            position, (batches, number) = next_one()
            while position in self.left_out:
                position, (batches, number) = next_one()
            return batches, number

        def start(trainer: Any) -> int:
            return int(trainer.state.global_step + trainer.context.skipper.steps)

        def computing(trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss = compute(trainer, model, inputs, *args, **kwargs)
            last = trainer._micro_batch == trainer.args.gradient_accumulation_steps - 1
            poisoned = trainer.model.training and trainer.position in self.poisoned and last
            return loss * torch.nan if poisoned and trainer.args.process_index == self.rank else loss

        patch.setattr(Trainer, "get_batch_samples", reading)
        patch.setattr(Trainer, "compute_loss", computing)


def figures(out: Path) -> list[dict[str, float]]:
    """The rows without times and without the position in the samples, which differs."""
    names = ("step", "loss", "grad_norm", "lr", "val_loss", "val_accuracy", "val_f1")
    return [{name: row[name] for name in names if name in row} for row in read_rows(out / "metrics.jsonl")]


def weights(out: Path, step: int = 21) -> dict[str, Any]:
    folder = out / "checkpoints" / f"step-{step}"
    moments = torch.load(folder / "optimizer.pt", weights_only=True)["state"]
    named = {f"{number}.{name}": value for number, state in moments.items() for name, value in state.items()}
    return {name: tensor.tolist() for name, tensor in (load_file(folder / "model.safetensors") | named).items()}


@pytest.fixture
def line(folder: Path, bert: Path) -> tuple[str, ...]:
    return (*ARGS, f"model.source={bert}", f"data.folder={folder}")


def test_a_poisoned_batch_is_skipped(
    fine_tune: Callable[..., Any], line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends bit-equal, with dropout, to one whose data lacks that batch."""
    skip, bad = (*line, "train.on_divergence=skip"), range(BAD, BAD + 1)
    with monkeypatch.context() as patch:
        Batches(poisoned=bad).install(patch)
        done = fine_tune(*skip, out=tmp_path / "poisoned")
    assert done.code == 0, done.text
    assert "step 10: samples 36 to 39 skipped, the loss is nan" in done.text
    with monkeypatch.context() as patch:
        Batches(left_out=bad).install(patch)
        assert fine_tune(*skip, out=tmp_path / "without").code == 0
    assert figures(done.out) == figures(tmp_path / "without")
    assert weights(done.out) == weights(tmp_path / "without")
    assert [row["consumed_samples"] for row in done.rows][8:11] == [36, 44, 48]
    assert [(row["step"], row["skipped_from"], row["skipped_to"]) for row in done.rows if "skipped_steps" in row] == [
        (10, 36, 40)
    ]
    assert done.results["consumed_samples"] == 22 * 4


def test_a_stopped_run_that_skipped_resumes_equally(
    fine_tune: Callable[..., Any], line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also past the end of an epoch and with another setting: the checkpoint has the position in the samples."""
    skip = (*line, "train.on_divergence=skip")
    Batches(poisoned=range(BAD, BAD + 1)).install(monkeypatch)
    assert fine_tune(*skip, out=tmp_path / "whole").code == 0
    for args in (("train.stop_after=12",), ("train.stop_after=1",), ("train.on_divergence=stop",)):
        assert fine_tune(*skip, *args, out=tmp_path / "parts").code == 0
    assert figures(tmp_path / "parts") == figures(tmp_path / "whole")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


def test_rollback_continues_past_the_bad_samples(
    fine_tune: Callable[..., Any], line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run that resumes from that checkpoint, with data that lack the batches up to the bad one."""
    back = (*line, "train.on_divergence=rollback", "train.save_every=4", "train.keep=0")
    with monkeypatch.context() as patch:
        Batches(poisoned=range(BAD, BAD + 1)).install(patch)
        done = fine_tune(*back, out=tmp_path / "poisoned")
    assert done.code == 0, done.text
    assert "step 10, samples 36 to 39: the loss is nan; back to step 8, past sample 39" in done.text
    with monkeypatch.context() as patch:
        Batches(left_out=range(9, 11)).install(patch)
        without = (*line, "train.save_every=4", "train.keep=0", "train.on_divergence=skip")
        assert fine_tune(*without, "train.stop_after=8", out=tmp_path / "without").code == 0
        assert fine_tune(*without, out=tmp_path / "without").code == 0
    assert figures(done.out) == figures(tmp_path / "without")
    assert weights(done.out) == weights(tmp_path / "without")
    assert [row["consumed_samples"] for row in done.rows][7:9] == [32, 44]


@pytest.mark.slow
def test_two_processes_skip_together(line: tuple[str, ...], tmp_path: Path) -> None:
    """Only one rank reads the bad batch."""
    for name in ("poisoned", "without"):
        spawn(on_two, 2, line, str(tmp_path), name)
    assert figures(tmp_path / "poisoned") == figures(tmp_path / "without")
    assert weights(tmp_path / "poisoned", 12) == weights(tmp_path / "without", 12)


def on_two(line: tuple[str, ...], out: str, name: str) -> None:
    from recipe_core.hooks.registry import load
    from recipe_core.settings.job import resolve
    from recipe_hf_finetune.run import run

    job = resolve(load(), "hf_finetune:tiny", [*line, "train.micro_batch=4", "train.on_divergence=skip"], 2)
    batches = Batches(poisoned=range(5, 6), rank=1) if name == "poisoned" else Batches(left_out=range(5, 6))
    with pytest.MonkeyPatch.context() as patch:
        batches.install(patch)
        run(job, Path(out) / name)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("skip",), "11 steps in a row were skipped, the last with samples 76 to 79"),
        pytest.param(
            ("rollback", "train.save_every=4"),
            "went back to step 8 3 times, so it is not the data",
            marks=pytest.mark.slow,
        ),
        (("rollback",), "no checkpoint is good: there is no earlier checkpoint"),
    ],
)
def test_without_an_end(
    fine_tune: Callable[..., Any], line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...],
    message: str,
) -> None:  # fmt: skip
    Batches(poisoned=range(BAD, 1000)).install(monkeypatch)
    done = fine_tune(*line, f"train.on_divergence={args[0]}", *args[1:])
    assert done.code == ExitCode.DIVERGED
    assert message in done.text
    assert "Traceback" not in done.text


def test_a_rate_that_is_far_too_high(fine_tune: Callable[..., Any], line: tuple[str, ...], tmp_path: Path) -> None:
    """The advice of the message works; a step beyond fp32 is refused before the run."""
    args = (*line, "train.stop_after=4", "train.save_every=1")
    refused = fine_tune(*args, "train.lr=1e38")
    assert (refused.code, "train.lr: a step of up to 1e+39 is more than a weight can hold" in refused.text) == (2, True)
    done = fine_tune(*args, "train.lr=1e30")
    assert (done.code, "Traceback" in done.text) == (ExitCode.DIVERGED, False)
    assert "begin anew with another --out" in done.text
    assert fine_tune(*args, out=tmp_path / "other").code == 0


@pytest.mark.parametrize(
    "entry", [5, {"attributes": [1]}, {"attributes": {"steps": -3}}, {"attributes": {"steps": {}}}]
)
def test_a_damaged_number_of_steps_is_named(tmp_path: Path, entry: Any) -> None:
    """The Trainer's state is JSON, which may hold anything."""
    Manifest(format="hf_trainer", step=2, world_size=1, torch="", time="", files={}).write(tmp_path)
    (tmp_path / "trainer_state.json").write_text(json.dumps({"stateful_callbacks": {SKIPPED_STEPS: entry}}))
    with pytest.raises(CheckpointError, match="the Trainer's state in it cannot be loaded"):
        _position(tmp_path)


def test_resume_from_a_step_of_its_own(fine_tune: Callable[..., Any], line: tuple[str, ...], tmp_path: Path) -> None:
    args = (*line, "train.save_every=4", "train.keep=0")
    done = fine_tune(*args)
    whole = figures(done.out)
    refused = fine_tune(*args, "train.resume=step-5")
    assert (refused.code, "has no checkpoint step-5; there are step-4, step-8" in refused.text) == (2, True)
    assert "continuing" not in fine_tune(*args).text  # it is finished
    back = (*args, "train.resume=step-8", "train.stop_after=2")
    first = fine_tune(*back)
    assert (first.code, first.results["step"], "continuing after step 8" in first.text) == (0, 10, True)
    assert "continuing after step 10" in fine_tune(*back).text  # the same command continues, and does not go back again
    assert fine_tune(*args).code == 0
    assert figures(done.out) == whole


def test_the_last_step_may_be_the_one_that_diverges(fine_tune: Callable[..., Any], line: tuple[str, ...]) -> None:
    """Its loss is computed before its update; the run used to be reported as finished, with an accuracy."""
    done = fine_tune(*line, "train.eval_every=1", "train.lr=1e30", "train.warmup_steps=0")
    assert done.code == ExitCode.DIVERGED, done.text
    assert "step 1: the validation loss is nan, which is not finite. Nothing was saved since; " in done.text
    assert not list(done.out.glob("checkpoints/step-*"))
    assert read_rows(done.out / "metrics.jsonl")[-1]["step"] == 1
