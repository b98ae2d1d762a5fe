"""A run that is held to a stored curve ends at the first step that departs from it, and saves nothing after that."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from recipe_core.errors import ConfigError, GoldenError
from recipe_core.hooks.train import Train
from recipe_core.launch.failures import exit_code
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.train.guards.golden import Golden, load_golden, relative_error
from recipe_core.train.metrics.curves import Row, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job


def job(*words: str, world_size: int | None = None) -> Job:
    line = ("train.device=cpu", *words)
    if world_size is None:
        return resolve(toy.registry(), "toy", line)
    return checked_job(toy.registry(), "toy", line, world_size)


def train(out: str, *words: str) -> list[Row]:
    run(job(*words), Path(out))
    return read_rows(Path(out) / "metrics.jsonl")


def fails(out: str, *words: str) -> str:
    """The message of a run that departs, as each rank sees it."""
    with pytest.raises(GoldenError) as caught:
        train(out, *words)
    assert exit_code(caught.value) == 1
    return str(caught.value)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which every step is logged."""
    out = tmp_path_factory.mktemp("golden") / "run"
    train(str(out))
    return out


def changed(golden: Path, to: Path, step: int, factor: float) -> Path:
    losses = {row["step"]: row["loss"] for row in read_rows(golden / "metrics.jsonl") if "loss" in row}
    losses[step] *= factor
    to.write_text("".join(json.dumps({"step": s, "loss": loss}) + "\n" for s, loss in losses.items()))
    return to


@pytest.mark.parametrize("every", [1, 3, 8])
def test_a_run_equals_itself_at_every_step(
    tmp_path: Path, golden: Path, every: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = train(
        str(tmp_path / "run"), f"train.golden={golden}", "train.golden_tolerance=0", f"train.log_every={every}"
    )
    assert rows[-1]["step"] == 8
    assert f"golden: 8 steps are held to {golden} within 0 of its losses" in capsys.readouterr().out


@pytest.mark.parametrize("every", [1, 8])
def test_it_ends_at_the_first_step_that_departs(tmp_path: Path, golden: Path, every: int) -> None:
    file, out = changed(golden, tmp_path / "golden.jsonl", 4, 1.5), tmp_path / "run"
    words = ("train.save_every=1", "train.keep=0") if every == 1 else ()
    found = fails(str(out), f"train.golden={file}", f"train.log_every={every}", "train.eval_every=0", *words)
    loss = read_rows(golden / "metrics.jsonl")[4]["loss"]
    assert found == (
        f"step 4: the loss is {loss:.6g}, and {file} says {1.5 * loss:.6g}: 0.333 of it away, where "
        "train.golden_tolerance allows 0.02. The run ends here; what was saved is of earlier steps"
    )
    saved = {path.name for path in (out / "checkpoints").glob("step-*")}
    assert saved == ({"step-1", "step-2", "step-3"} if every == 1 else set())
    assert read_rows(out / "metrics.jsonl")[-1]["step"] == (4 if every == 1 else 8)  # what departed can be looked at


@pytest.mark.parametrize(("tolerance", "departs"), [(0.4, False), (0.3, True)])
def test_the_tolerance_is_relative_to_the_expected_loss(
    tmp_path: Path, golden: Path, tolerance: float, departs: bool
) -> None:
    file = changed(golden, tmp_path / "golden.jsonl", 2, 1.5)  # a third of 1.5 is away
    words = (f"train.golden={file}", f"train.golden_tolerance={tolerance}", "train.steps=8")
    if departs:
        assert "step 2: " in fails(str(tmp_path / "run"), *words)
    else:
        assert train(str(tmp_path / "run"), *words)[-1]["step"] == 8


def test_on_two_ranks_both_end_alike(tmp_path: Path, golden: Path) -> None:
    file = changed(golden, tmp_path / "golden.jsonl", 5, 1.5)
    words = (f"train.golden={file}", "train.golden_tolerance=1e-5", "train.log_every=4")
    one, two = spawn(fails, 2, str(tmp_path / "run"), *words)
    assert one == two
    assert one.startswith("step 5: ")


def test_a_continued_run_compares_what_is_left(
    tmp_path: Path, golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "golden.txt", str(tmp_path / "run")
    losses = [row["loss"] for row in read_rows(golden / "metrics.jsonl") if "loss" in row]
    file.write_text("\n".join(map(str, losses[:6])))
    words = (f"train.golden={file}", "train.golden_tolerance=0")
    train(out, *words, "train.stop_after=4")
    train(out, *words, "train.stop_after=3")
    assert f"golden: 2 steps are held to {file}" in capsys.readouterr().out
    assert train(out, *words)[-1]["step"] == 8
    assert f"golden: nothing is left to compare, {file} ends at step 6" in capsys.readouterr().out


def test_a_loss_that_is_no_number_departs_first(tmp_path: Path, golden: Path) -> None:
    words = ("model.poison_after=20", "train.log_every=8", "train.eval_every=0", f"train.golden={golden}")
    assert "step 3: the loss is nan" in fails(str(tmp_path / "run"), *words)


def test_distances() -> None:
    pairs = (1.0, 1.0), (1.5, 1.0), (-1.5, -1.0), (0.0, 0.0)
    assert [relative_error(*pair) for pair in pairs] == [0, 0.5, 0.5, 0]
    for loss, expected in ((math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan), (1.0, math.inf), (1.0, 0.0)):
        assert relative_error(loss, expected) == math.inf
    assert Golden(Path("g"), {3: 1.0}, math.inf).departure(3, [9.0, 9.0]) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "train.golden: {path}: there is no such file or folder; expected a run folder, its metrics.jsonl"),
        ("<html>", "train.golden: {path}, line 1: expected a number or a JSON object with \"step\", got '<html>'"),
        (
            '{"step": 20, "loss": 1.0}\n{"step": 90, "loss": 1.0}\n',
            "{path}: nothing to compare with the steps 1 to 8 of",
        ),
        ('{"step": 20, "loss": 1.0}\n{"step": 90, "loss": 1.0}\n', "of this run; it has steps 20 to 90"),
        ('{"step": 0, "val_loss": 1.0}\n', "none of its lines has a loss"),
    ],
)
def test_a_file_that_is_no_curve_is_found_before_the_run(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "golden.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(problem.format(path=path))):
        job(f"train.golden={path}", world_size=1)


def test_settings() -> None:
    assert load_golden(Train()) is None
    with pytest.raises(ValueError, match=r"golden_tolerance: expected at least 0, got -1"):
        Train(golden_tolerance=-1)
