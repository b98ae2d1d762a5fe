"""Runs that are stopped in the middle of an epoch and resumed have the metrics of an uninterrupted run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recipe_core.checkpoint.manifest import Manifest, measure
from recipe_core.errors import ExitCode
from recipe_core.train.metrics.curves import read_rows

pytestmark = pytest.mark.filterwarnings("default")
TIMES = ("seconds", "samples_per_second", "sequences_per_second", "peak_memory")
ARGS = (
    "data.task=mrpc", "data.max_length=24", "model.dropout=0.1", "train.epochs=3", "train.batch_per_process=4",
    "train.micro_batch=2", "train.lr=1e-3", "train.eval_every=0", "train.eval_samples=100", "train.log_every=1",
)  # fmt: skip


def figures(done: Any) -> list[dict[str, Any]]:
    """The rows without times."""
    return [{key: value for key, value in row.items() if key not in TIMES} for row in read_rows(done / "metrics.jsonl")]


def test_in_the_middle_of_an_epoch(fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path) -> None:
    """27 samples make 7 steps an epoch; the runs stop after 10 and after 14, with dropout, and evaluate each epoch."""
    args = (*ARGS, f"model.source={bert}", f"data.folder={folder}")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert fine_tune(*args, out=whole).code == 0
    first = fine_tune(*args, "train.stop_after=10", out=parts)
    assert (first.code, first.results["step"]) == (0, 10)
    assert "recipe run" in first.text
    assert "continuing after step 10" in fine_tune(*args, "train.stop_after=4", out=parts).text
    assert fine_tune(*args, out=parts).code == 0
    assert figures(parts) == figures(whole)
    assert [row["step"] for row in figures(whole) if "val_accuracy" in row] == [7, 14, 21]
    name = "predictions-validation.tsv"
    assert (parts / name).read_text() == (whole / name).read_text()
    again = fine_tune(*args, out=parts)  # there is nothing left to do
    assert (again.code, figures(parts)) == (0, figures(whole))


def test_disk_space_is_checked_before_training(
    fine_tune: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, folder: Path, bert: Path, tmp_path: Path
) -> None:
    """For all checkpoints of all seeds; with space, the same command trains as if there had always been enough."""
    args = (
        *ARGS, f"model.source={bert}", f"data.folder={folder}", "train.seeds=2", "train.save_every=8", "train.keep=1",
    )  # fmt: skip
    with monkeypatch.context() as full:
        full.setattr("recipe_core.files.shutil.disk_usage", lambda path: SimpleNamespace(free=700_000))
        full.setattr("recipe_hf_finetune.trainer.seed_run._train", lambda *_: pytest.fail("it trains"))
        done = fine_tune(*args, out=tmp_path / "late")
    assert done.code == ExitCode.DISK_FULL
    message = (
        r"late: room for 4 checkpoints at once \(fewer with a lower train.keep\) needs 1.1 MB and 0.7 MB are free; "
    )
    assert re.search(message, done.text), done.text
    assert fine_tune(*args, out=tmp_path / "late").code == fine_tune(*args, out=tmp_path / "early").code == 0
    assert figures(tmp_path / "late") == figures(tmp_path / "early")


def test_sigterm_saves_and_ends(folder: Path, bert: Path, tmp_path: Path, fine_tune: Callable[..., Any]) -> None:
    out = tmp_path / "run"
    args = [*ARGS, f"model.source={bert}", f"data.folder={folder}", "train.epochs=40", "train.eval_every=1000"]
    line = [sys.executable, "-m", "recipe_core.cli", "run", "hf_finetune:tiny", *args, "--out", str(out)]
    with subprocess.Popen(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while len(read_rows(out / "metrics.jsonl")) < 5:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75
    stopped = fine_tune(*args, "train.stop_after=1", out=out)
    assert stopped.code == 0
    steps = [row["step"] for row in stopped.rows if "loss" in row]
    assert steps == list(range(1, steps[-1] + 1))  # none is missing or repeated


def test_a_discarded_step_leaves_no_trace(
    fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two micro batches of step 10 is computed; with dropout, in the middle of an epoch."""
    from recipe_core.train import stopping

    args = (*ARGS, f"model.source={bert}", f"data.folder={folder}")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert fine_tune(*args, out=whole).code == 0
    begin, discards, steps = stopping.Stopping.begin_step, stopping.Stopping.discards, []

    def beginning(self: stopping.Stopping, micro_batches: int) -> None:
        steps.append(micro_batches)
        begin(self, micro_batches)

    def asking(self: stopping.Stopping, number: int) -> bool:
        if (len(steps), number) == (10, 1):
            signal.raise_signal(signal.SIGUSR1)
        return discards(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(stopping, "SECONDS", 1e-9)  # each step is a long one
        patch.setattr(stopping.Stopping, "begin_step", beginning)
        patch.setattr(stopping.Stopping, "discards", asking)
        stopped = fine_tune(*args, out=cut)
    assert stopped.code == 75
    assert (stopped.results["step"], stopped.results["exit_code"], stopped.results["stopped"]) == (9, 75, "SIGUSR1")
    assert figures(cut) == figures(whole)[:9]
    assert fine_tune(*args, out=cut).code == 0
    assert figures(cut) == figures(whole)


@pytest.mark.parametrize("step", [6, 7, 14, 21])
def test_stopped_where_an_evaluation_is_due(
    step: int, fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations are due at 7, 14 and 21; one that a signal prevents runs before the next step."""
    from recipe_hf_finetune.trainer.fine_tuner import FineTuner

    args = (*ARGS, f"model.source={bert}", f"data.folder={folder}", "train.save_every=7")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert fine_tune(*args, out=whole).code == 0
    end_step = FineTuner.end_step

    def ending(self: FineTuner) -> None:
        end_step(self)
        if self.state.global_step == step:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(FineTuner, "end_step", ending)
        stopped = fine_tune(*args, out=cut)
    assert stopped.results["step"] == step
    assert stopped.results["stopped"] == (None if step == 21 else "SIGTERM")  # nothing is left to do after the last one
    done = fine_tune(*args, out=cut)
    assert figures(cut) == figures(whole)
    keys = ("loss", "val_loss", "loss_step", "val_loss_step", "accuracy")
    expected = json.loads((whole / "results.json").read_text())
    assert [done.results[key] for key in keys] == [expected[key] for key in keys]
    losses = [
        {m.step: m.val_loss for m in map(Manifest.read, (out / "checkpoints").glob("step-*"))} for out in (whole, cut)
    ]
    assert losses[1].items() >= {step: loss for step, loss in losses[0].items() if step in losses[1]}.items()
    assert losses[1][21] is not None


@pytest.mark.parametrize("kind", ["weight", "exp_avg"])
def test_non_finite_state_is_not_saved(
    kind: str, fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipe_hf_finetune.trainer.fine_tuner import FineTuner

    end_step = FineTuner.end_step

    def ending(self: FineTuner) -> None:
        end_step(self)
        if self.state.global_step == 4:
            weight = dict(self.model.named_parameters())["classifier.weight"]
            (weight.data if kind == "weight" else self.optimizer.state[weight][kind])[0, 0] = float("inf")

    monkeypatch.setattr(FineTuner, "end_step", ending)
    args = (*ARGS, f"model.source={bert}", f"data.folder={folder}", "train.save_every=2", "train.eval_every=1000")
    done = fine_tune(*args)
    name = "model.classifier.weight" if kind == "weight" else "optimizer.state.classifier.weight.exp_avg"
    assert done.code == ExitCode.DIVERGED
    assert f"step 4: not finite: {name}. Nothing was saved or removed; the last good checkpoint is" in done.text
    assert [path.name for path in (done.out / "checkpoints").iterdir()] == ["step-2"]


def test_a_damaged_checkpoint_is_passed_over(
    fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path
) -> None:
    args = (*ARGS, f"model.source={bert}", f"data.folder={folder}", "train.save_every=2", "train.stop_after=5")
    out = tmp_path / "run"
    assert fine_tune(*args, out=out).code == 0
    damaged = out / "checkpoints" / "step-5" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    done = fine_tune(*args, out=out)
    assert str(damaged.parent) in done.text
    assert "continuing after step 4" in done.text


def test_two_processes_double_the_batch_and_halve_the_steps(
    fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path
) -> None:
    args = (*ARGS, f"model.source={bert}", f"data.folder={folder}", "model.dropout=0")
    one = fine_tune(*args, "train.stop_after=1", out=tmp_path / "one").results
    two = fine_tune(*args, "--processes", "2", out=tmp_path / "two").results
    assert (one["steps"], two["steps"]) == (21, 12)  # 27 samples are 7 batches of 4, and 4 of 8
    assert (one["consumed_samples"], two["consumed_samples"]) == (4, 12 * 8)
    assert (two["world_size"], two["step"]) == (2, 12)


def test_micro_batches_change_no_loss(fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path) -> None:
    """The Trainer minimises a multiple of the loss if it assumes that the model divides by the number of items."""
    args = (*ARGS, f"model.source={bert}", f"data.folder={folder}", "model.dropout=0", "train.stop_after=6")
    whole = fine_tune(*args, "train.micro_batch=4", out=tmp_path / "whole").rows
    parts = fine_tune(*args, "train.micro_batch=1", out=tmp_path / "parts").rows
    for key in ("loss", "grad_norm"):
        assert [row[key] for row in parts] == pytest.approx([row[key] for row in whole], rel=1e-5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("model.heads=4",),
            "  - model.heads: 2 in its job.yaml, 4 in this run\nTo take them over, add: model.heads=2",
        ),
        (("model.dropout=0.2",), ""),
    ],
)
def test_resuming_another_model_of_the_same_shapes_is_refused(
    fine_tune: Callable[..., Any], folder: Path, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    start = (f"train.resume={tmp_path / 'first' / 'checkpoints' / 'step-8'}", "train.steps=9")
    assert fine_tune(out=tmp_path / "first").code == 0
    done = fine_tune(*args, *start, out=tmp_path / "second")
    assert (done.code, message in done.text) == (2 if message else 0, True)


def test_resuming_a_model_that_was_loaded_is_compared_by_its_config(
    fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path
) -> None:
    """The folder of model.source has changed since."""
    source = tmp_path / "bert"
    shutil.copytree(bert, source)
    args = (*ARGS, f"model.source={source}", f"data.folder={folder}")
    assert fine_tune(*args, "train.stop_after=2", out=tmp_path / "first").code == 0
    (step,) = (tmp_path / "first" / "checkpoints").glob("step-*")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "num_attention_heads": 4, "layer_norm_eps": 1e-5}))
    for out in ("first", "second"):
        done = fine_tune(*args, f"train.resume={step}", out=tmp_path / out)
        assert done.code == 2
        assert "  - layer_norm_eps: 1e-12 there, 1e-05 in this run\n  - num_attention_heads: 2 there, 4 in" in done.text


def test_files_of_the_trainer_that_it_cannot_load(
    folder: Path, bert: Path, tmp_path: Path, fine_tune: Callable[..., Any]
) -> None:
    """With new checksums, as if another version of a library had written them."""
    args, out = (*ARGS, f"model.source={bert}", f"data.folder={folder}"), tmp_path / "run"
    assert fine_tune(*args, "train.stop_after=2", out=out).code == 0
    checkpoint = out / "checkpoints" / "step-2"
    manifest = Manifest.read(checkpoint)
    for name, value in [
        ("optimizer.pt", [1]),
        ("optimizer.pt", {"state": {}, "param_groups": []}),
        ("rng_state.pth", {"python": 1}),
        ("scheduler.pt", {"last_epoch": "x", "_step_count": None}),
        ("trainer_state.json", None),
    ]:
        file = checkpoint / name
        content = file.read_bytes()
        if value is None:
            file.write_text('{"global_step": 2, "log_history": 5, "epoch": "x", "stateful_callbacks": 3}')
        else:
            torch.save(value, file)
        replace(manifest, files={**manifest.files, name: measure(file)}).write(checkpoint)
        done = fine_tune(*args, "train.stop_after=1", out=out)
        assert done.code == 2, (name, value, done.text)
        assert str(checkpoint) in done.text
        assert "Traceback" not in done.text
        file.write_bytes(content)
    manifest.write(checkpoint)
    assert fine_tune(*args, "train.stop_after=1", out=out).code == 0
