"""Curves on the disk: the forms that are read, and what is said of a file that is something else."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.errors import DataError
from recipe_core.train.metrics.curves import read_curve, read_lines

ROWS = '{"step": 0, "val_loss": 3.0}\n{"step": 2, "loss": 2.5, "lr": 0.1}\n{"step": 4, "loss": null}\n'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(ROWS)
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["", "metrics.jsonl"])
def test_a_run_folder_and_its_metrics(run: Path, name: str) -> None:
    curve = read_curve(run / name)
    losses = curve.values()
    assert (losses[2], curve.values("val_loss"), curve.values("x")) == (2.5, {0: 3.0}, {})
    assert losses.keys() == {2, 4}
    assert math.isnan(losses[4])
    assert curve.sibling("job.yaml") is None
    (run / "job.yaml").write_text("recipe: toy")
    assert curve.sibling("job.yaml") == run / "job.yaml"


def test_a_number_a_line_is_the_loss_of_step_1_2_3(tmp_path: Path) -> None:
    file = tmp_path / "golden_steploss.txt"
    file.write_text("11.2\n10.9\n\n9.5e0\n")
    assert read_curve(file).values() == {1: 11.2, 2: 10.9, 4: 9.5}


def test_the_last_line_may_be_unfinished(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    assert list(read_curve(run).values()) == [2, 4]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "run: no metrics.jsonl in it; expected a run folder"),
        (b"", "metrics.jsonl: holds no step; expected"),
        (b"\n\n", "metrics.jsonl: holds no step; expected"),
        (
            b"step,loss\n1,2\n",
            r"metrics.jsonl, line 1: expected a number or a JSON object with \"step\", got 'step,loss'",
        ),
        (b'{"step": 1}\n{"loss": 2}\n', "metrics.jsonl, line 2: expected"),
        (b'{"step": 1}\n{"step": 2, "lo\n{"step": 3}\n', "metrics.jsonl, line 2: expected"),
        (b'{"step": 1, "lo', "metrics.jsonl, line 1: expected"),
        (b"[1, 2]\n", "metrics.jsonl, line 1: expected"),
        (b"\x80\x02}q\x00.", "metrics.jsonl, line 1: expected"),
    ],
)
def test_something_else(tmp_path: Path, content: bytes | None, problem: str) -> None:
    (tmp_path / "run").mkdir()
    if content is not None:
        (tmp_path / "run" / "metrics.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=problem):
        read_curve(tmp_path / "run")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"typo: there is no such file or folder; expected a run folder, its metrics"):
        read_curve(tmp_path / "typo")


@pytest.mark.parametrize(
    "changed",
    ['"step": true', '"step": -1', f'"step": {1 << 63}', '"loss": [1]', '"loss": "2.5"', '"loss": 1e999',
     f'"val_accuracy": {10 ** 400}', '"seconds": {}', '"consumed_samples": false'],
)  # fmt: skip
def test_a_row_with_values_of_other_types_is_damaged(run: Path, changed: str) -> None:
    """Calculations with them ended a continued run with a traceback."""
    path = run / "metrics.jsonl"
    line = f'{{"step": 3, "loss": 2.0, {changed}}}\n'
    path.write_text(ROWS + line)
    lines = read_lines(path)
    assert [row["step"] for row in lines.rows] == [0, 2, 4]
    assert lines.damaged == {4: line.rstrip().encode()}


@pytest.mark.parametrize("read", [read_curve, read_lines])
def test_a_pipe_in_the_place_of_the_file(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """It has no writer, and opening it blocked."""
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(DataError, match=r"metrics\.jsonl: expected a regular file$"):
        read(tmp_path / "metrics.jsonl")
