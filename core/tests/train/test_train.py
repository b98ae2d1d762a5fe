"""The loop, on the toy plugin: what a run gives does not depend on how it was cut or over how many ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from recipe_core.checkpoint.manifest import Manifest
from recipe_core.errors import ConfigError, DivergedError, RecipeError
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.train import loop as training
from recipe_core.train.metrics.curves import Row, read_rows
from recipe_core.train.run import run
from recipe_core.train.seeds import mix, mix_array
from recipe_core.train.step import Stepper
from recipe_core.train.stopping import announcement

LONG = 100_000


def job(*words: str) -> Job:
    return resolve(toy.registry(), "toy", words)


def train(out: str, *words: str) -> list[Row]:
    run(job(*words), Path(out))
    return read_rows(Path(out) / "metrics.jsonl")


def losses(rows: list[Row], key: str = "loss") -> dict[int, float]:
    return {row["step"]: row[key] for row in rows if key in row}


def test_every_step_and_evaluation_is_logged(tmp_path: Path) -> None:
    rows = train(str(tmp_path / "run"))
    assert [row["step"] for row in rows] == list(range(9))
    assert [row["step"] for row in rows if "val_loss" in row] == [0, 4, 8]
    assert rows[-1]["val_loss"] < rows[0]["val_loss"]
    assert rows[5].keys() >= {
        "step", "consumed_samples", "loss", "accuracy", "lr", "grad_norm", "seconds", "tokens_per_second",
        "flops_per_second", "peak_memory",
    }  # fmt: skip
    assert [row["consumed_samples"] for row in rows] == list(range(0, 72, 8))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (results["step"], results["stopped"], results["loss"]) == (8, None, rows[-1]["loss"])
    assert results["first_val_loss"] == rows[0]["val_loss"]


def test_the_same_twice(tmp_path: Path) -> None:
    assert losses(train(str(tmp_path / "a"))) == losses(train(str(tmp_path / "b")))


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    assert losses(train(str(tmp_path / "a"))) != losses(train(str(tmp_path / "b"), "train.seed=5"))


@pytest.mark.parametrize("extra", ["train.precision=bf16_mixed", "train.precision=bf16", "train.eval_every=0"])
def test_cut_after_any_step_it_continues_exactly(tmp_path: Path, extra: str) -> None:
    whole = train(str(tmp_path / "whole"), extra)
    for _ in range(3):
        cut = train(str(tmp_path / "cut"), extra, "train.stop_after=3")
    assert losses(cut) == losses(whole)
    assert losses(cut, "val_loss") == losses(whole, "val_loss")
    assert losses(cut, "grad_norm") == losses(whole, "grad_norm")


def test_a_continued_run_takes_the_optimizer_settings_that_it_is_given(tmp_path: Path) -> None:
    words = ("model.dropout=0", "train.schedule=constant")
    train(str(tmp_path / "a"), *words, "train.stop_after=4")
    train(str(tmp_path / "b"), *words, "train.stop_after=4")
    kept = losses(train(str(tmp_path / "a"), *words))
    changed = losses(train(str(tmp_path / "b"), *words, "train.weight_decay=0.9", "train.betas=0.1,0.2"))
    assert [kept[s] == changed[s] for s in (4, 5, 7, 8)] == [True, True, False, False]


def test_activation_checkpointing_changes_nothing(tmp_path: Path) -> None:
    plain, again = (
        train(str(tmp_path / w), f"train.activation_checkpointing={w}", "model.dropout=0") for w in ("true", "false")
    )
    assert losses(plain) == losses(again)


def test_two_ranks_agree_with_one_over_20_steps_with_dropout(tmp_path: Path) -> None:
    words = ("train.steps=20", "model.dropout=0.5")
    one = train(str(tmp_path / "one"), *words)
    two, nothing = spawn(train, 2, str(tmp_path / "two"), *words)
    assert two == nothing  # both read rank 0's file
    for key in ("loss", "val_loss", "grad_norm"):
        assert losses(two, key) == pytest.approx(losses(one, key), rel=0, abs=1e-6)


def test_saved_on_two_ranks_it_continues_on_one(tmp_path: Path) -> None:
    whole = train(str(tmp_path / "whole"), "train.steps=8")
    spawn(train, 2, str(tmp_path / "cut"), "train.steps=8", "train.stop_after=4")
    assert losses(train(str(tmp_path / "cut"), "train.steps=8")) == pytest.approx(losses(whole), rel=0, abs=1e-6)


def test_a_loss_that_is_no_number_ends_the_run_and_is_not_saved(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(DivergedError, match="step 6: the loss is nan"):
        train(str(out), "model.poison_after=40", "train.save_every=1", "train.eval_every=0")
    assert sorted(p.name for p in (out / "checkpoints").glob("step-*")) == ["step-4", "step-5"]


@pytest.mark.parametrize("word", ["model.hidden=16", "data.seed=1", "train.seed=7", "train.global_batch=16"])
def test_another_run_does_not_continue_this_one(tmp_path: Path, word: str) -> None:
    train(str(tmp_path / "run"), "train.stop_after=1")
    with pytest.raises(ConfigError, match=f"holds another run: {word.partition('=')[0]} was"):
        train(str(tmp_path / "run"), word)


def test_a_run_that_failed_before_its_first_step_leaves_its_folder_to_the_next(tmp_path: Path) -> None:
    """The corrected setting comes with the same folder."""
    train(str(tmp_path / "first"), "model.hidden=16", "train.steps=1")
    start = f"train.init_from={tmp_path / 'first'}"
    with pytest.raises(RecipeError, match=r"train\.init_from: (.|\n)*model\.hidden: 16 in its job\.yaml, 8 in"):
        train(str(tmp_path / "run"), start)
    assert (tmp_path / "run" / "job.yaml").is_file()
    train(str(tmp_path / "run"), start, "model.hidden=16", "train.stop_after=1")
    with pytest.raises(ConfigError, match=r"holds another run: model\.hidden was 16 and is 8"):
        train(str(tmp_path / "run"), start)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(RecipeError, match="is not a run folder"):
        train(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


# A known handler, whatever started the tests: a shell's background jobs ignore SIGINT, and that is inherited.
ENDLESS = """import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv.pop(1))
from test_train import train
train(*sys.argv[1:])
"""


@contextmanager
def endless(out: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run in a process of its own that would take hours; ended when the test ends."""
    line = [sys.executable, "-c", ENDLESS, Path(__file__).parent, out, f"train.steps={LONG}", "train.schedule=constant"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*map(str, line), *words], env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(out: Path, key: str) -> None:
    """Wait for a row with ``key`` of a step, so that there is something to save."""
    deadline = time.monotonic() + 60
    while not any(key in row and row["step"] > 0 for row in read_rows(out / "metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    """A second start while the first still runs is a message; after its end, it continues there."""
    out = tmp_path / "run"
    words = (f"train.steps={LONG}", "train.schedule=constant")
    with endless(out, "train.save_every=1") as process:
        wait_for(out, "loss")
        with pytest.raises(ConfigError, match="another process trains in this folder; wait for its end, or give"):
            train(str(out), *words)
        process.kill()
        process.wait()
    before = len(read_rows(out / "metrics.jsonl"))
    assert len(train(str(out), *words, f"train.stop_after={before + 100}")) > before


@pytest.mark.parametrize(("sent", "moment"), [("SIGTERM", "loss"), ("SIGINT", "loss"), ("SIGTERM", "val_loss")])
def test_a_signal_ends_the_step_saves_and_exits_cleanly(tmp_path: Path, sent: str, moment: str) -> None:
    out = tmp_path / "run"
    # evaluating at every step over many samples: where it is interrupted then is nearly surely in an evaluation
    more = ("train.eval_every=1", "train.eval_samples=2000") if moment == "val_loss" else ("train.eval_every=0",)
    with endless(out, *more) as process:
        wait_for(out, moment)
        process.send_signal(getattr(signal, sent))
        assert process.wait(60) == 0
    results = json.loads((out / "results.json").read_text())
    assert (results["stopped"], results["exit_code"]) == (sent, 75)
    assert 0 < results["step"] < LONG
    assert (out / "checkpoints" / f"step-{results['step']}").is_dir()
    more = ("train.eval_every=0", f"train.steps={LONG}", "train.schedule=constant")
    words = (*more, f"train.stop_after={results['step'] + 2}")
    assert losses(train(str(out), *more, "train.stop_after=2")) == losses(train(str(tmp_path / "whole"), *words))


CLOCK = ("seconds", "per_second", "peak_memory")


def figures(rows: list[Row]) -> list[Row]:
    """The rows without what a clock and the machine say."""
    return [{key: value for key, value in row.items() if not key.endswith(CLOCK)} for row in rows]


def results(out: Path) -> Row:
    """results.json likewise."""
    found: Row = json.loads((out / "results.json").read_text())
    return figures([found])[0]


def kept(out: Path) -> dict[int, float | None]:
    """The checkpoints, and the validation loss that each was saved with."""
    found = [Manifest.read(path) for path in (out / "checkpoints").iterdir()]
    return {manifest.step: manifest.val_loss for manifest in found}


def stop_at(step: int, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a SIGTERM once: when ``step`` is done, or in the middle of the evaluation after it."""
    take_step, evaluate = training.Trainer._step, Stepper.evaluate
    sent: list[int] = []

    def send(done: int) -> None:
        if done == step and not sent:
            sent.append(step)
            signal.raise_signal(signal.SIGTERM)

    def stepping(trainer: training.Trainer) -> bool:
        done = take_step(trainer)
        if moment == "step":
            send(trainer.progress.step)
        return done

    def evaluating(stepper: Stepper) -> dict[str, float] | None:
        if moment == "evaluation":
            send(stepper.progress.step)
        return evaluate(stepper)

    monkeypatch.setattr(training.Trainer, "_step", stepping)
    monkeypatch.setattr(Stepper, "evaluate", evaluating)


@pytest.mark.parametrize(
    ("step", "moment"), [*((step, "step") for step in range(3, 9)), (4, "evaluation"), (8, "evaluation")]
)
@pytest.mark.parametrize("save_every", [0, 1, 4])
def test_stopped_at_any_step_no_evaluation_is_lost(
    tmp_path: Path, step: int, moment: str, save_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations are due at 4 and 8, the second at the end of the schedule."""
    words = (f"train.save_every={save_every}",)
    whole = train(str(tmp_path / "whole"), *words)
    with monkeypatch.context() as patch:
        stop_at(step, moment, patch)
        train(str(tmp_path / "cut"), *words)
    stopped = results(tmp_path / "cut")
    assert (stopped["step"], stopped["stopped"]) == (step, "SIGTERM")
    assert (stopped["loss_step"], stopped["val_loss_step"]) == (step, 4 if step > 4 else 0)
    assert figures(train(str(tmp_path / "cut"), *words)) == figures(whole)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")
    assert kept(tmp_path / "cut")[8] == kept(tmp_path / "whole")[8]
    if save_every == 1:  # else the one that the signal made takes a place
        assert kept(tmp_path / "cut") == kept(tmp_path / "whole")


def test_an_owed_evaluation_is_made_on_two_ranks(tmp_path: Path) -> None:
    out = str(tmp_path / "cut")
    stopped, _ = spawn(stopped_at_4, 2, out)
    assert [row["step"] for row in stopped if "val_loss" in row] == [0]
    one, two = spawn(train, 2, out)
    assert one == two
    assert [row["step"] for row in one if "val_loss" in row] == [0, 4, 8]


def test_an_owed_evaluation_may_show_that_the_last_step_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, words = str(tmp_path / "run"), ("train.steps=1", "train.eval_every=1", "train.lr=1e30")
    with monkeypatch.context() as patch:
        stop_at(1, "step", patch)
        train(out, *words)
    with pytest.raises(DivergedError, match=r"step 1: the validation loss is (nan|inf), which is not finite"):
        train(out, *words)


def stopped_at_4(out: str) -> list[Row]:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(4, "step", patch)
        return train(out)


def test_an_older_validation_loss_is_not_shown_as_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(str(tmp_path / "run"), "train.stop_after=6")
    found = results(tmp_path / "run")
    assert (found["step"], found["loss_step"], found["val_loss_step"]) == (6, 6, 4)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  validation")]
    assert [line.endswith(" at step 4") for line in lines] == [True, True]  # loss and accuracy


@pytest.mark.parametrize(
    ("name", "step", "may_discard", "answer"),
    [
        ("SIGTERM", 3, False, "SIGTERM: saving after step 3"),
        ("SIGINT", 1354, False, "SIGINT: saving after step 1,354; Ctrl-C again stops at once, without saving"),
        ("SIGTERM", 3, True, "SIGTERM: saving step 2 in about 1 s, or step 3 if that ends before"),
        ("SIGTERM", None, False, "SIGTERM: saving after this step"),
    ],
)
def test_the_answer_names_the_step_that_is_saved(name: str, step: int | None, may_discard: bool, answer: str) -> None:
    assert announcement(name, step, may_discard=may_discard) == answer


def test_seeds_differ_by_sample_and_by_run() -> None:
    numbers = {mix(seed, number) for seed in range(50) for number in range(200)}
    assert len(numbers) == 10_000
    assert all(0 <= n < 2**63 for n in numbers)


def test_seeds_of_arrays_are_those_of_numbers() -> None:
    numbers = np.array([0, 1, 2**40, 2**63 - 1])
    assert (mix_array(2**63 - 1, numbers) >> np.uint64(1)).tolist() == [mix(2**63 - 1, int(n)) for n in numbers]
