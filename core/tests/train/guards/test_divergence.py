"""Steps that diverge are skipped, or the run goes back; ``train.resume=step-N``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from recipe_core.checkpoint.formats.single import Single
from recipe_core.engine import protocol as engines
from recipe_core.errors import CheckpointError, DivergedError
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.train.metrics.curves import read_rows
from recipe_core.train.run import run

WORDS = ("model.dropout=0", "train.steps=8", "train.log_every=1", "train.eval_every=0", "checkpoint=single")
POISON = ("model.poison_after=24", "model.poison_until=32")
"""The fourth step's batch of eight."""


def job(*words: str, processes: int = 1) -> Job:
    return resolve(toy.registry(), "toy", [*WORDS, *words], processes)


def train(out: str, words: tuple[str, ...], processes: int = 1) -> None:
    run(job(*words, processes=processes), Path(out))


def curve(out: Path) -> dict[int, tuple[float, float]]:
    return {row["step"]: (row["loss"], row["grad_norm"]) for row in read_rows(out / "metrics.jsonl")}


def weights(out: Path, step: int = 8) -> dict[str, Any]:
    return {
        name: tensor.read().tolist()
        for name, tensor in Single().open(out / "checkpoints" / f"step-{step}")["model"].items()
    }


@pytest.mark.parametrize(("processes", "layout"), [(1, "single"), (2, "ddp"), (2, "fsdp"), (2, "zero1")])
def test_a_poisoned_batch_is_skipped(tmp_path: Path, processes: int, layout: str) -> None:
    """The run ends, to the last bit, as one whose data does not have that batch."""
    words = (f"layout={layout}", "train.micro_batch=2")
    poisoned, without = tmp_path / "poisoned", tmp_path / "without"
    spawn(train, processes, str(poisoned), (*words, *POISON, "train.on_divergence=skip"), processes)
    spawn(train, processes, str(without), (*words, "data.left_out=24,8"), processes)
    assert curve(poisoned) == curve(without)
    assert weights(poisoned) == weights(without)
    rows = read_rows(poisoned / "metrics.jsonl")
    assert [row["consumed_samples"] for row in rows] == [8, 16, 24, 40, 48, 56, 64, 72]
    skips = [(row["skipped_steps"], row["skipped_from"], row["skipped_to"]) for row in rows if "skipped_steps" in row]
    assert skips == [(1, 24, 32)]
    assert rows[3]["skipped_from"] == 24


def test_a_run_that_skipped_and_was_stopped_goes_on_equally(tmp_path: Path) -> None:
    words = (*POISON, "train.on_divergence=skip", "train.spike_sigma=3", "train.steps=40")
    train(str(tmp_path / "whole"), words)
    for _ in range(8):
        train(str(tmp_path / "parts"), (*words, "train.stop_after=5"))
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    assert weights(tmp_path / "parts", 40) == weights(tmp_path / "whole", 40)


def test_a_spike_is_skipped(tmp_path: Path) -> None:
    words = ("train.spike_sigma=0.2", "train.on_divergence=skip", "train.steps=60")
    train(str(tmp_path / "run"), words)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    skipped = sum(row.get("skipped_steps", 0) for row in rows)
    assert skipped > 0
    assert all("skipped_steps" not in row for row in rows[:20])
    assert rows[-1]["consumed_samples"] == 8 * (60 + skipped)


def test_skipping_without_end_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="11 steps in a row were skipped, the last with samples 104 to 111"):
        train(str(tmp_path / "run"), ("model.poison_after=24", "train.on_divergence=skip"))


def test_rollback_continues_past_the_bad_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    train(str(out), (*POISON, "train.on_divergence=rollback", "train.save_every=2"))
    said = capsys.readouterr()
    assert "samples 24 to 31: the loss is nan; back to step 2, past sample 31" in said.out + said.err
    rows = read_rows(out / "metrics.jsonl")
    assert [(row["step"], row["consumed_samples"]) for row in rows] == [
        (1, 8), (2, 16), (3, 40), (4, 48), (5, 56), (6, 64), (7, 72), (8, 80)
    ]  # fmt: skip


def test_rollback_without_an_end(tmp_path: Path) -> None:
    words = ("model.poison_after=24", "train.on_divergence=rollback", "train.save_every=2")
    with pytest.raises(DivergedError, match="went back to step 2 3 times, so it is not the data"):
        train(str(tmp_path / "run"), words)


def test_rollback_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="no checkpoint is good: there is no earlier"):
        train(str(tmp_path / "run"), (*POISON, "train.on_divergence=rollback"))


def test_rollback_passes_over_checkpoints_of_a_loss_that_has_risen(tmp_path: Path) -> None:
    """A rate that explodes: what is saved after the rise is finite, and of no use."""
    out = tmp_path / "run"
    words = (
        "train.steps=60",
        "train.save_every=2",
        "train.keep=0",
        "train.on_divergence=rollback",
        "train.micro_batch=8",
    )
    train(str(out), (*words, "train.stop_after=20"))
    with pytest.raises(DivergedError, match=r"went back to step \d+ 3 times"):
        train(str(out), (*words, "train.lr=1e5", "train.clip=0"))
    steps = sorted(int(p.name.removeprefix("step-")) for p in (out / "checkpoints").iterdir())
    assert steps[-1] == 20


@pytest.mark.parametrize(("eval_every", "what"), [(1, "validation loss"), (0, "loss after it")])
def test_the_last_step_may_be_the_one_that_diverges(tmp_path: Path, eval_every: int, what: str) -> None:
    """Its loss was computed before its update; the validation behind it tells, or one micro batch more."""
    with pytest.raises(DivergedError, match=rf"step 1: the {what} is (nan|inf), which is not finite\. Nothing"):
        run(job("train.steps=1", f"train.eval_every={eval_every}", "train.lr=1e30"), tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))
    assert ("val_loss" in read_rows(tmp_path / "run" / "metrics.jsonl")[-1]) == bool(eval_every)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["exit_code"] == 65
    assert results["reason"].startswith(f"step 1: the {what} is ")


RATES = ["1e6", *(pytest.param(f"1e{power}", marks=pytest.mark.slow) for power in (10, 15, 20, 25, 30, 35)), "1e38"]


@pytest.mark.parametrize("done", [0, 5])
@pytest.mark.parametrize("rate", RATES)
def test_the_advised_way_out_works(tmp_path: Path, rate: str, done: int) -> None:
    """A rate far too high, from the beginning or behind good steps; the message's advice is followed to the letter.

    The weights explode before the loss tells: what is saved in between is finite, and of no use.
    """
    words, out = ("train.save_every=1", "train.steps=20"), tmp_path / "run"
    if done:
        train(str(out), (*words, f"train.stop_after={done}"))
    with pytest.raises(DivergedError) as error:
        train(str(out), (*words, f"train.lr={rate}", "train.clip=0"))
    advice = str(error.value)
    assert "Lower train.lr" in advice
    if "another --out" in advice:
        out = tmp_path / "other"
    resume = re.findall(r"train\.resume=step-\d+", advice)
    train(str(out), (*words, "train.save_every=0", *resume))
    rows = read_rows(out / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert bool(resume) == bool(done)


def test_resume_from_a_step_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, words = tmp_path / "run", ("train.save_every=2", "train.keep=0")
    train(str(out), words)
    whole = curve(out)
    with pytest.raises(CheckpointError, match="no checkpoint step-3; there are step-2, step-4, step-6, step-8"):
        train(str(out), (*words, "train.resume=step-3"))
    back = (*words, "train.resume=step-4", "train.stop_after=2")
    train(str(out), back)
    assert "what came later is called step-8.left-for-step-4, step-6.left-for-step-4" in capsys.readouterr().err
    assert list(curve(out)) == [1, 2, 3, 4, 5, 6]
    train(str(out), back)  # the same line again continues, without a rollback
    assert curve(out) == whole


def test_resume_from_the_newest_step_goes_back_once_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There are no later checkpoints to set aside; the same line continues from what it has saved since."""
    out, words = tmp_path / "run", ("train.save_every=2", "train.keep=0")
    train(str(out), (*words, "train.stop_after=4"))
    back = (*words, "train.resume=step-4", "train.stop_after=2")
    train(str(out), back)
    train(str(out), back)
    assert list(curve(out)) == list(range(1, 9))
    assert "has gone back to step 4 before" in capsys.readouterr().err


def test_both_settings_belong_together() -> None:
    with pytest.raises(Exception, match="spike_sigma: it needs on_divergence=skip or on_divergence=rollback"):
        job("train.spike_sigma=3")


def test_engines_are_left(tmp_path: Path) -> None:
    """A rollback leaves no process group in the engine."""
    train(str(tmp_path / "run"), (*POISON, "train.on_divergence=rollback", "train.save_every=2"))
    with engines.start(job().train) as engine:
        assert engine.world_size == 1
