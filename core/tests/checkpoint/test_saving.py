"""When a run saves, which checkpoints are kept, where it resumes, both formats; in the background and on two ranks."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recipe_core.checkpoint.formats.single import Single
from recipe_core.checkpoint.inspect import CheckpointFiles
from recipe_core.checkpoint.manifest import Manifest
from recipe_core.checkpoint.saving.background import Saver, copy_to_host
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.checkpoint.state import not_finite
from recipe_core.errors import CheckpointError, ConfigError, DiskError, DivergedError
from recipe_core.settings.fill import flat
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.train import loop as training
from recipe_core.train.metrics.curves import read_rows
from recipe_core.train.run import run
from recipe_core.train.step import Stepper
from recipe_core.train.stopping import Stopping


def job(*words: str) -> Job:
    return resolve(toy.registry(), "toy", words)


def train(out: str, *words: str) -> dict[int, float]:
    """The losses of a run by step."""
    run(job(*words), Path(out))
    return {row["step"]: row["loss"] for row in read_rows(Path(out) / "metrics.jsonl") if "loss" in row}


def steps(out: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("step-")) for p in (out / "checkpoints").iterdir())


def test_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    out = tmp_path / "run"
    # with this rate the validation loss rises after the first evaluations
    train(str(out), "train.steps=10", "train.eval_every=1", "train.save_every=1", "train.keep=2", "train.lr=3.0")
    losses = {row["step"]: row["val_loss"] for row in read_rows(out / "metrics.jsonl") if row["step"]}
    best = min(losses, key=losses.__getitem__)
    assert best < 9
    assert steps(out) == [best, 9, 10]
    assert Manifest.read(out / "checkpoints" / f"step-{best}").val_loss == losses[best]


def test_the_best_goes_when_it_is_not_wanted(tmp_path: Path) -> None:
    words = ("train.steps=10", "train.eval_every=1", "train.save_every=1", "train.keep=2", "train.lr=3.0")
    train(str(tmp_path / "run"), *words, "train.keep_best=false")
    assert steps(tmp_path / "run") == [9, 10]


def spoil(step: int, change: Callable[[training.Trainer], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the model or the optimizer after ``step``."""
    take_step = training.Trainer._step

    def stepping(trainer: training.Trainer) -> bool:
        taken = take_step(trainer)
        if trainer.progress.step == step:
            change(trainer)
        return taken

    monkeypatch.setattr(training.Trainer, "_step", stepping)


def poison(kind: str, value: float, trainer: training.Trainer) -> None:
    """One value of the second layer's weight, or of one of its optimizer states."""
    weight = dict(trainer.stepper.model.module.named_parameters())["layers.1.weight"]
    target = weight.data if kind == "model" else trainer.stepper.optimizer.state[weight][kind]
    target.view(-1)[3] = value


SPOILT = {"model": "model.layers.1.weight", "exp_avg_sq": "optimizer.state.layers.1.weight.exp_avg_sq"}


@pytest.mark.parametrize("form", ["dcp", "single"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", SPOILT)
def test_what_is_not_finite_is_not_saved(
    tmp_path: Path, kind: str, value: float, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss and the gradients of this step were finite."""
    spoil(6, lambda trainer: poison(kind, value, trainer), monkeypatch)
    with pytest.raises(DivergedError) as error:
        train(str(tmp_path / "run"), "train.save_every=1", "train.eval_every=0", f"checkpoint={form}")
    last = tmp_path / "run" / "checkpoints" / "step-5"
    assert str(error.value).startswith(
        f"step 6: not finite: {SPOILT[kind]}. Nothing was saved or removed; the last good checkpoint is {last}. "
    )
    assert error.value.exit_code == 65
    assert steps(tmp_path / "run") == [4, 5]


def spoilt_on_rank_1(out: str, layout: str) -> tuple[str, list[int]]:
    with pytest.MonkeyPatch.context() as patch:

        def change(trainer: training.Trainer) -> None:
            if trainer.ranks.rank == 1:
                poison("exp_avg_sq", math.inf, trainer)

        spoil(2, change, patch)
        # The comparison of copies would find the same state first, as a drift.
        words = ("train.save_every=1", "train.eval_every=0", "train.check_replicas_at_save=false")
        with pytest.raises(DivergedError) as error:
            train(out, *words, f"layout={layout}")
    return str(error.value), steps(Path(out))


def test_not_finite_on_one_rank_ends_all(tmp_path: Path) -> None:
    one, two = spawn(spoilt_on_rank_1, 2, str(tmp_path / "run"), "ddp")
    assert one == two
    assert one[0].startswith("rank 1: step 2: not finite: optimizer.state.layers.1.weight.exp_avg_sq. Nothing was")
    assert one[1] == [1]


def test_infinite_buffers_and_frozen_weights_are_saved() -> None:
    state = {"model": {"mask": torch.tensor(-math.inf), "a": torch.ones(2)}, "optimizer": {"state": {"a": {}}}}
    assert not_finite(state) == []
    assert not_finite({**state, "optimizer": {"state": {"a": {"v": torch.tensor([math.nan])}, "mask": {}}}}) == [
        "model.mask", "optimizer.state.a.v",
    ]  # fmt: skip


def explode(trainer: training.Trainer) -> None:
    for weight in trainer.stepper.model.module.parameters():
        weight.data.mul_(1000)


def test_exploded_checkpoints_do_not_push_out_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 14 itself had a low loss, and the weights that its checkpoint holds are the exploded ones."""
    out = tmp_path / "run"
    words = ("train.steps=30", "train.save_every=2", "train.eval_every=0", "train.lr=0.001", "train.schedule=constant")
    spoil(14, explode, monkeypatch)
    train(str(out), *words, "train.stop_after=20")
    losses = {row["step"]: row["loss"] for row in read_rows(out / "metrics.jsonl")}
    assert min(losses[step] for step in range(15, 21)) > 10 * max(losses[step] for step in range(1, 15))
    assert steps(out) == [12, 18, 20]
    warning = f"warning: the loss has risen far above its level since step-12; {out}/checkpoints/step-12 stays"
    assert capsys.readouterr().err.count(warning) == 1
    train(str(out), *words)
    assert steps(out) == [12, 28, 30]


def test_the_best_stays_beside_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The validation loss is lowest at step 6, where the weights have not grown; training losses fall until step 14."""
    out = tmp_path / "run"
    evaluate = Stepper.evaluate
    monkeypatch.setattr(
        Stepper,
        "evaluate",
        lambda stepper: {**(evaluate(stepper) or {}), "val_loss": abs(stepper.progress.step - 6) + 0.5},
    )
    spoil(14, explode, monkeypatch)
    words = ("train.steps=30", "train.save_every=2", "train.eval_every=2", "train.lr=0.001", "train.schedule=constant")
    train(str(out), *words)
    assert steps(out) == [6, 12, 28, 30]


@pytest.mark.parametrize("form", ["dcp", "single"])
@pytest.mark.parametrize("kind", SPOILT)
def test_verify_names_what_is_not_finite(tmp_path: Path, kind: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkpoint of before, whose bytes are those that were written."""
    monkeypatch.setattr(Checkpoints, "require_finite", lambda *args: None)
    monkeypatch.setattr(Stepper, "loss_after_update", lambda stepper: 0.0)
    spoil(2, lambda trainer: poison(kind, math.inf, trainer), monkeypatch)
    train(str(tmp_path / "run"), "train.steps=2", "train.save_every=1", "train.eval_every=0", f"checkpoint={form}")
    path = tmp_path / "run" / "checkpoints" / "step-2"
    files = CheckpointFiles(toy.registry())
    assert files.verify(tmp_path / "run") == [f"{path}: {SPOILT[kind]} holds values that are no finite numbers"]
    assert files.verify(path.with_name("step-1")) == []


def test_saves_by_the_clock(tmp_path: Path) -> None:
    train(str(tmp_path / "always"), "train.steps=4", "train.save_minutes=1e-9", "train.keep=0", "train.eval_every=0")
    train(str(tmp_path / "never"), "train.steps=4", "train.save_minutes=60", "train.keep=0", "train.eval_every=0")
    assert (steps(tmp_path / "always"), steps(tmp_path / "never")) == ([1, 2, 3, 4], [4])


def test_a_checkpoint_holds_the_job(tmp_path: Path) -> None:
    train(str(tmp_path / "run"), "train.steps=2")
    text = (tmp_path / "run" / "checkpoints" / "step-2" / "job.yaml").read_text()
    assert text == (tmp_path / "run" / "job.yaml").read_text()
    settings, _, plugins = text.partition("plugins:\n")
    assert settings == job("train.steps=2").as_yaml()
    assert plugins.startswith("  recipe: toy\n  model: toy\n  data: toy\n")


def test_goes_on_from_a_checkpoint_of_another_run(tmp_path: Path) -> None:
    whole = train(str(tmp_path / "whole"))
    train(str(tmp_path / "first"), "train.stop_after=3")
    second = train(str(tmp_path / "second"), f"train.resume={tmp_path / 'first' / 'checkpoints' / 'step-3'}")
    assert second == {step: loss for step, loss in whole.items() if step > 3}


def test_a_start_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is not a whole checkpoint"):
        train(str(tmp_path / "run"), f"train.resume={tmp_path / 'nowhere'}")


def test_does_not_begin_anew_over_checkpoints(tmp_path: Path) -> None:
    whole = train(str(tmp_path / "run"), "train.resume=none")
    assert len(whole) == 8
    with pytest.raises(ConfigError, match=r"train\.resume: none, and .*step-8 is there"):
        train(str(tmp_path / "run"), "train.resume=none")


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("form", ["dcp", "single"])
def test_each_format_resumes_exactly(tmp_path: Path, form: str, processes: int) -> None:
    whole = train(str(tmp_path / "whole"))
    words = (f"checkpoint={form}", "train.save_every=1")
    if processes == 1:
        train(str(tmp_path / "cut"), *words, "train.stop_after=3")
    else:
        spawn(train, processes, str(tmp_path / "cut"), *words, "train.stop_after=3")
    assert train(str(tmp_path / "cut"), *words) == pytest.approx(whole, rel=0, abs=0 if processes == 1 else 1e-6)


def test_single_is_one_file_of_weights(tmp_path: Path) -> None:
    train(str(tmp_path / "run"), "checkpoint=single", "train.steps=1")
    folder = tmp_path / "run" / "checkpoints" / "step-1"
    found = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert found["progress"] == {"step": 1, "consumed_samples": 8}
    assert found["model"]["layers.0.weight"].shape == (8, 6)
    names = {"model.layers.0.weight", "optimizer.state.layers.0.weight.step", "progress.step"}
    assert dict(flat(Single().open(folder))).keys() >= names


def test_single_says_what_does_not_fit(tmp_path: Path) -> None:
    Single().save(tmp_path, {"model": {"a": torch.ones(3), "b": torch.ones(2)}})
    with pytest.raises(CheckpointError, match=r"model.a: found float32 \[3\], expected float32 \[4\]"):
        Single().load(tmp_path, {"model": {"a": torch.ones(4), "b": torch.ones(2)}})


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"cos\nsystem\n(S'true'\ntR."])
def test_single_refuses_what_is_no_weights(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"checkpoint\.pt: (refused, since it names|damaged, or no file of weights)"
    ):
        Single().load(tmp_path, {})


class Slow:
    """Fake checkpoints: a save blocks until it is released."""

    def __init__(self) -> None:
        self.go, self.saved = threading.Event(), []

    def require_finite(self, step: int, state: dict[str, Any]) -> None:
        """Accept every state."""

    def save(self, step: int, state: dict[str, Any], val_loss: float | None) -> Path:
        assert self.go.wait(20)
        if step == 3:
            raise DiskError("full")
        self.saved.append((step, state["x"].tolist()))
        return Path()


def test_training_goes_on_while_it_saves_what_was_there() -> None:
    slow, x = Slow(), torch.zeros(2)
    with Saver(slow, background=True) as saver:  # type: ignore[arg-type]
        saver.save(1, {"x": x}, None)
        x.add_(1)  # the next step changes the weights while the save is under way
        assert slow.saved == []
        slow.go.set()
        saver.save(2, {"x": x}, None)
        saver.wait()
    assert slow.saved == [(1, [0.0, 0.0]), (2, [1.0, 1.0])]


def test_a_save_that_failed_is_raised_by_the_next_call() -> None:
    slow = Slow()
    slow.go.set()
    with Saver(slow, background=True) as saver:  # type: ignore[arg-type]
        saver.save(3, {"x": torch.zeros(1)}, None)
        with pytest.raises(DiskError, match="full"):
            saver.save(4, {"x": torch.zeros(1)}, None)


def test_a_save_that_failed_ends_training_after_the_step() -> None:
    """All that follows could not be saved either; the next save may be hours away."""
    slow = Slow()
    with Saver(slow, background=True) as saver:  # type: ignore[arg-type]
        ranks = SimpleNamespace(largest=lambda *values: lambda: list(values), traced=False)
        stopping = Stopping(ranks, SimpleNamespace(signal=None), torch.nn.Module(), 0, saver.failed)  # type: ignore[arg-type]
        saver.save(3, {"x": torch.zeros(1)}, None)
        assert not stopping.now()
        slow.go.set()
        deadline = time.monotonic() + 60
        while not stopping.now() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert stopping.now()
        with pytest.raises(DiskError, match="full"):
            saver.wait()
        assert not saver.failed()


def test_a_copy_shares_nothing() -> None:
    state = {"a": {"b": torch.ones(2)}, "list": [{"lr": 0.1, "t": torch.ones(1)}], "n": 3}
    found = copy_to_host(state)
    state["a"]["b"].zero_()
    state["list"][0]["t"].zero_()
    assert found["a"]["b"].tolist() == [1, 1]
    assert found["list"][0]["t"].tolist() == [1]
    assert found["n"] == 3
