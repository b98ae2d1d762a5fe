"""Rows of metrics survive what happens to runs."""

import json
from pathlib import Path

import pytest

from recipe_core.curves import read_rows
from recipe_core.metrics import Metrics


def rows(steps: range) -> list[dict[str, float]]:
    return [{"step": s, "consumed_samples": 8 * s, "loss": 1 / s} for s in steps]


def write(folder: Path, since: int, steps: range) -> list[dict[str, float]]:
    shown: list[dict[str, float]] = []
    with Metrics(folder, since, shown.append) as metrics:
        for row in rows(steps):
            metrics.write(row)
    return shown


def test_every_row_is_shown_and_can_be_read_back(tmp_path: Path) -> None:
    assert write(tmp_path, 0, range(1, 4)) == rows(range(1, 4)) == read_rows(tmp_path / "metrics.jsonl")


def test_a_continued_run_has_every_step_once(tmp_path: Path) -> None:
    write(tmp_path, 0, range(1, 8))  # killed after step 7, while the last checkpoint is of step 4
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    write(tmp_path, 4, range(5, 10))
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == list(range(1, 10))


def test_a_run_from_the_beginning_forgets_what_was_there(tmp_path: Path) -> None:
    write(tmp_path, 0, range(1, 8))
    write(tmp_path, 0, range(1, 2))
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1]


def test_not_a_number_becomes_null(tmp_path: Path) -> None:
    with Metrics(tmp_path, 0, lambda row: None) as metrics:
        metrics.write({"step": 1, "consumed_samples": 8, "loss": float("nan")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "consumed_samples": 8, "loss": None}


def test_tensorboard_reads_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401  (the format's name)

    write(tmp_path, 0, range(1, 4))
    (path,) = (tmp_path / "tensorboard").glob("events.*")
    data, found = path.read_bytes(), {}
    while data:  # TFRecord: length, its checksum, the event, its checksum
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        found |= {(event.step, v.tag): v.simple_value for v in event.summary.value}
        data = data[16 + size :]
    assert found == {(s, "loss"): pytest.approx(1 / s) for s in (1, 2, 3)}
