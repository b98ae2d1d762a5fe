"""Long metrics.jsonl: read row by row, with the results that reading all of it gives."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.checkpoint.saving.retention import Trend
from recipe_core.cli.compare.compare import compare
from recipe_core.errors import DataError
from recipe_core.train.metrics.curves import read_curve, scan
from recipe_core.train.metrics.writer import Metrics

ROWS = 20_000


def peak(work: Callable[[], object]) -> int:
    """Bytes that ``work`` needs at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A run of many rows; its lines have 6.7 MB."""
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(1, ROWS + 1):
            row = {"step": step, "loss": 1 / step, **{f"metric_{n}": step + n / 7 for n in range(10)}}
            file.write(json.dumps(row) + "\n")
    return tmp_path


class Silent(Trend):
    def add(self, step: int, loss: float | None) -> None:
        """Remember nothing."""


def test_trimming_holds_a_row_at_a_time(long: Path) -> None:
    path = long / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = b"{damaged\n"
    path.write_bytes(b"".join(lines) + b'{"step": 30000, "lo')
    warnings: list[str] = []

    def resume() -> None:
        with Metrics(long, ROWS - 7, lambda row: None, warnings.append, Silent()) as metrics:
            metrics.write({"step": ROWS - 7, "val_loss": 0.5})

    assert peak(resume) < 1_000_000  # bytes; the text alone has several times as many
    last = json.loads(lines[ROWS - 8]) | {"val_loss": 0.5}
    wanted = [*lines[:4], *lines[5 : ROWS - 8], json.dumps(last).encode() + b"\n"]
    assert path.read_bytes() == b"".join(wanted)
    assert (long / "metrics.jsonl.damaged").read_bytes() == b"{damaged\n"
    assert warnings == [
        f"{path}: line 5 is damaged; kept in {long}/metrics.jsonl.damaged, beside 19,999 good rows in metrics.jsonl"
    ]


def test_a_row_before_the_evaluation_stays(long: Path) -> None:
    path = long / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)[:3]
    path.write_bytes(b"".join(lines))
    with Metrics(long, 5, lambda row: None, pytest.fail, Silent()) as metrics:
        metrics.write({"step": 5, "val_loss": 0.5})
    assert path.read_bytes() == b"".join([*lines, b'{"step": 5, "val_loss": 0.5}\n'])


def test_scan_reads_no_further_than_asked(long: Path) -> None:
    assert peak(lambda: next(scan(long / "metrics.jsonl"))) < 200_000


def test_a_curve_takes_two_numbers_for_each_value(long: Path) -> None:
    assert peak(lambda: read_curve(long)) < ROWS * 12 * 16 * 1.5  # 1.5: arrays grow in steps
    curve = read_curve(long)
    assert curve.values("loss") == {step: 1 / step for step in range(1, ROWS + 1)}
    assert list(curve.values("metric_3")) == list(range(1, ROWS + 1))
    assert curve.values("none") == {}


def test_a_comparison_finds_the_first_of_the_largest(tmp_path: Path) -> None:
    """A step that stands twice counts as it was written last; what is no number is not finite."""
    for name, losses in (("a", [1.0, 2, 4, 8, 8]), ("b", [1.0, 3, 6, "x", 12])):
        rows = [{"step": 1, "loss": 7}, *({"step": step, "loss": loss} for step, loss in enumerate(losses, 1))]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, other = (read_curve(tmp_path / name) for name in "ab")
    assert list(first.values().items()) == [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0)]
    (found,) = compare([first, other], tolerance=0.1).departures
    assert (found.largest.step, math.isinf(found.largest.relative)) == (4, True)
    assert found.beyond is not None
    assert found.beyond.step == 2
    (tmp_path / "b").write_text('{"step": 1, "loss": 1}\r{"step": 2, "loss": 3}\r\n{"step": 3, "loss": 6}\n')
    (found,) = compare([first, read_curve(tmp_path / "b")]).departures
    assert (found.steps, found.largest.step, found.beyond) == (3, 2, None)


def test_a_step_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f'{{"step": {1 << 63}, "loss": 1}}\n')
    with pytest.raises(DataError, match='line 1: expected a number or a JSON object with "step"'):
        read_curve(tmp_path / "a")
