"""Rows of metrics survive what happens to runs."""

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recipe_core import plugin
from recipe_core.errors import DataError
from recipe_core.hooks.specs import NoSettings, Part
from recipe_core.train.metrics.curves import read_curve, read_rows
from recipe_core.train.metrics.tracker import Trackers
from recipe_core.train.metrics.writer import Metrics as Writer


def Metrics(*arguments: Any) -> Writer:
    """With TensorBoard, as every run has it by default."""
    return Writer(*arguments, trackers=Trackers([Part(spec, NoSettings()) for spec in plugin.register_trackers()]))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows beyond ``size`` bytes: what fits of a write is written, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def rows(steps: range) -> list[dict[str, float]]:
    return [{"step": s, "consumed_samples": 8 * s, "loss": 1 / s} for s in steps]


def write(folder: Path, since: int, steps: range) -> list[dict[str, float]]:
    shown: list[dict[str, float]] = []
    with Metrics(folder, since, shown.append, pytest.fail) as metrics:
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
    with Metrics(tmp_path, 0, lambda row: None, pytest.fail) as metrics:
        metrics.write({"step": 1, "consumed_samples": 8, "loss": float("nan")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "consumed_samples": 8, "loss": None}


def events(folder: Path) -> list[Any]:
    """Values in TensorBoard's files, without the time."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    found = []
    for path in sorted((folder / "tensorboard").glob("events.*")):
        data = path.read_bytes()
        while data:  # TFRecord: length, its checksum, the event, its checksum
            size = int.from_bytes(data[:8], "little")
            assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
            assert int.from_bytes(data[12 + size : 16 + size], "little") == masked_crc32c(data[12 : 12 + size])
            found.append(Event.FromString(data[12 : 12 + size]))
            found[-1].wall_time = 0
            data = data[16 + size :]
    return found


@pytest.mark.parametrize("since", [0, 2])
def test_the_events_are_those_of_tensorboardx(tmp_path: Path, since: int) -> None:
    from tensorboardX import SummaryWriter

    write(tmp_path / "ours", 0, range(1, since + 1))
    for path in (tmp_path / "ours" / "tensorboard").glob("*"):
        path.unlink()
    write(tmp_path / "ours", since, range(since + 1, 5))
    theirs = SummaryWriter(str(tmp_path / "theirs" / "tensorboard"), purge_step=since + 1 if since else None)
    for row in rows(range(since + 1, 5)):
        theirs.add_scalar("train/loss", row["loss"], row["step"])
    theirs.close()
    found = events(tmp_path / "ours")
    assert found == events(tmp_path / "theirs")
    assert [event.step for event in found if event.summary.value] == list(range(since + 1, 5))


def test_each_start_has_its_own_file_of_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice within one second, too: the second did overwrite the first."""
    monkeypatch.setattr("time.time", lambda: 1.0)
    write(tmp_path, 0, range(1, 3))
    write(tmp_path, 2, range(3, 5))
    assert [event.step for event in events(tmp_path) if event.summary.value] == [1, 2, 3, 4]


def test_a_later_evaluation_completes_its_row(tmp_path: Path) -> None:
    write(tmp_path, 0, range(1, 4))
    with Metrics(tmp_path, 3, lambda row: None, pytest.fail) as metrics:
        metrics.write({"step": 3, "consumed_samples": 24, "val_loss": 0.5})
        metrics.write(rows(range(4, 5))[0])
    wanted = rows(range(1, 5))
    wanted[2]["val_loss"] = 0.5
    assert read_rows(tmp_path / "metrics.jsonl") == wanted


DAMAGE = [b'{"step": 3, "lo', b"\0" * 40, b'{"step": 3, "loss": \xff}', b"[1, 2]", b'{"loss": 2}']


@pytest.mark.parametrize("line", DAMAGE)
def test_damaged_lines_are_kept_aside_and_the_others_stay(tmp_path: Path, line: bytes) -> None:
    write(tmp_path, 0, range(1, 8))
    path, warnings = tmp_path / "metrics.jsonl", []
    lines = path.read_bytes().splitlines()
    lines[2] = line
    path.write_bytes(b"\n".join([*lines, b""]))
    Metrics(tmp_path, 7, lambda row: None, warnings.append).__exit__(None, None, None)
    assert [row["step"] for row in read_rows(path)] == [1, 2, 4, 5, 6, 7]
    aside = tmp_path / "metrics.jsonl.damaged"
    assert aside.read_bytes() == line + b"\n"
    assert warnings == [f"{path}: line 3 is damaged; kept in {aside}, beside 6 good rows in metrics.jsonl"]
    Metrics(tmp_path, 7, lambda row: None, pytest.fail).__exit__(None, None, None)


@pytest.mark.parametrize("line", DAMAGE)
def test_who_reads_damaged_rows_is_warned(tmp_path: Path, line: bytes) -> None:
    path, warnings = tmp_path / "metrics.jsonl", []
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n' + 7 * (line + b"\n"))
    assert [row["step"] for row in read_rows(path, warnings.append)] == [1, 3]
    assert warnings == [f"{path}: lines 2, 4, 5, 6, 7 and 3 more are damaged; left out of what follows"]
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: expected a number or a JSON object"):
        read_curve(path)


def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path: Path) -> None:
    """Also where a part of a row fits: it is cut off again."""
    warnings: list[str] = []
    with Metrics(tmp_path, 0, lambda row: None, warnings.append) as metrics:
        for row in rows(range(1, 10)):
            metrics.write(row)
        with largest_file((tmp_path / "metrics.jsonl").stat().st_size + 20):
            for row in rows(range(10, 20)):
                metrics.write(row)
            assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == list(range(1, 10))
            assert (tmp_path / "metrics.jsonl").read_bytes().endswith(b"}\n")
        metrics.write(rows(range(20, 21))[0])
    assert read_rows(tmp_path / "metrics.jsonl") == rows(range(1, 21))
    assert [event.step for event in events(tmp_path) if event.summary.value] == list(range(1, 21))
    text = (
        "cannot be written since step 10 (File too large); training goes on, and they are written once that is possible"
    )
    assert warnings[0] == f"{tmp_path}/metrics.jsonl: rows {text}"
    assert [warning.partition(": ")[2][:18] for warning in warnings] == ["rows cannot be wri", "TensorBoard events"]


def test_what_is_lost_in_the_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipe_core.train.metrics.record_file.LIMIT", 5)
    warnings: list[str] = []
    with largest_file(0), Metrics(tmp_path, 0, lambda row: None, warnings.append) as metrics:
        for row in rows(range(1, 21)):
            metrics.write(row)
    assert f"{tmp_path}/metrics.jsonl: the rows of 20 steps from 1 to 20 are lost (File too large)" in warnings
    assert len(warnings) == 4
    assert read_rows(tmp_path / "metrics.jsonl") == []


def test_a_removed_folder_ends_nothing(tmp_path: Path) -> None:
    warnings: list[str] = []
    folder = tmp_path / "run"
    with Metrics(folder, 0, lambda row: None, warnings.append) as metrics:
        for row in rows(range(1, 4)):
            metrics.write(row)
        shutil.rmtree(folder)
        for row in rows(range(4, 7)):
            metrics.write(row)
    assert warnings[0] == (
        f"{folder}/metrics.jsonl was removed or replaced while the run wrote it: the rows up to step 3 are not in the "
        "file that those after it go to"
    )
    assert len(warnings) == 2
    assert read_rows(folder / "metrics.jsonl") == rows(range(4, 7))


def test_a_file_that_was_removed_after_its_last_row_is_missed(tmp_path: Path) -> None:
    warnings: list[str] = []
    with Metrics(tmp_path, 0, lambda row: None, warnings.append) as metrics:
        for row in rows(range(1, 4)):
            metrics.write(row)
        (tmp_path / "metrics.jsonl").unlink()
    said = f"{tmp_path}/metrics.jsonl was removed or replaced while the run wrote it: the rows up to step 3 are gone"
    assert warnings == [said]


def test_a_folder_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file")
    warnings: list[str] = []
    with Metrics(tmp_path, 0, lambda row: None, warnings.append) as metrics:
        for row in rows(range(1, 4)):
            metrics.write(row)
    assert read_rows(tmp_path / "metrics.jsonl") == rows(range(1, 4))
    assert [": TensorBoard events cannot be written since step 1 (" in warnings[0], len(warnings)] == [True, 2]
