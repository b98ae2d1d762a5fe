"""The meaning of an error, and how a rank reports its own to its supervisor."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from recipe_core.errors import (
    ConfigError,
    DiskError,
    DiskFullError,
    DivergedError,
    ExitCode,
    GoldenError,
    HungError,
    LaunchError,
    LostRankError,
    RecipeError,
    ReplicaError,
)
from recipe_core.files import disk_error
from recipe_core.launch.failures import exit_code, explain, read_failure, record_failure, spares


@pytest.mark.parametrize(
    ("text", "meaning", "kind"),
    [
        # The first three are messages of gloo in torch 2.13; the others are from NCCL and the stores.
        ("[pair.cc:553] Connection closed by peer [127.0.0.1]:4516.", "lost contact", LostRankError),
        ("[unbound_buffer.cc:78] Timed out waiting 20000ms for recv", "did not take part", LostRankError),
        ("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms", "rank 1, 3 did not", LostRankError),
        ("NCCL error: remote process exited or there was a network error", "lost contact", LostRankError),
        ("Failed to recv, got 0 bytes. Connection was likely closed.", "lost contact", LostRankError),
        ("wait timeout after 600000ms, keys: /default_pg/0/1", "did not take part", LostRankError),
        ("The client socket has failed to connect to any network address of (a, 7)", "cannot reach", LaunchError),
    ],
)
def test_explain(text: str, meaning: str, kind: type) -> None:
    found = explain(RuntimeError(text))
    assert type(found) is kind
    assert meaning in str(found)


def test_explain_leaves_other_errors_alone() -> None:
    assert explain(RuntimeError("shapes do not match")) is None
    assert explain(OSError("Connection reset by peer")) is None  # could be from a download


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_that_nobody_foresaw_is_a_message(number: int) -> None:
    found = explain(OSError(number, os.strerror(number), "x/y"))
    assert type(found) is DiskFullError
    assert str(found) == f"x/y: cannot be written ({os.strerror(number)}); free some space or choose another folder"


def test_a_path_that_nobody_can_use_is_a_message() -> None:
    error = OSError(errno.ENAMETOOLONG, "File name too long", "x/y")
    assert str(explain(error)) == "x/y: cannot be used (File name too long); choose a shorter name"
    assert explain(OSError(errno.ENOENT, "No such file or directory", "x/y")) is None  # may be a file of ours
    assert explain(OSError(errno.EACCES, "Permission denied")) is None  # names no path


def test_exit_codes() -> None:
    errors = [ConfigError("x"), KeyboardInterrupt(), SystemExit(7), SystemExit("bye"), SystemExit(), ValueError()]
    assert [exit_code(error) for error in errors] == [2, 130, 7, 1, 0, 70]


def test_a_failure_is_recorded_only_for_a_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECIPE_FAILURE", raising=False)
    assert record_failure(ValueError("x")) is False
    path = tmp_path / "error.json"
    monkeypatch.setenv("RECIPE_FAILURE", str(path))
    assert record_failure(ConfigError("train.lr: no")) is True
    found = read_failure(path)
    assert found is not None
    assert (found.message, found.traceback, found.exit_code, found.lost_peer) == ("train.lr: no", None, 2, False)
    monkeypatch.setenv("RECIPE_FAILURE", "/proc/none/error.json")  # the disk of the logs is full
    with spares(2, tmp_path) as files:
        for file in files:
            monkeypatch.setenv("RECIPE_FAILURE_SPARE", str(file))
            for message in ("a long one, which leaves nothing behind", file.name):
                assert record_failure(ConfigError(message)) is True
        assert [getattr(read_failure(file), "message", None) for file in files] == [file.name for file in files]
    assert record_failure(ValueError("x")) is False  # their supervisor is gone
    monkeypatch.delenv("RECIPE_FAILURE_SPARE")
    assert record_failure(ValueError("x")) is False  # there is no reader: the caller prints the error itself


def test_an_error_that_a_lost_peer_brought_about_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("RECIPE_FAILURE", str(path))
    try:
        try:
            raise RuntimeError("Connection closed by peer [127.0.0.1]:4516.")
        except RuntimeError:
            raise ValueError("while cleaning up") from None
    except ValueError as error:
        record_failure(error)
    found = read_failure(path)
    assert found is not None
    assert found.lost_peer
    assert found.traceback is not None
    assert read_failure(tmp_path / "none") is None


def test_the_page_of_exit_codes_has_a_row_for_each() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)
    assert rows == [(str(code.value), code.name) for code in ExitCode]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LostRankError, 75), (HungError, 69), (LaunchError, 2), (DivergedError, 65), (DiskFullError, 74),
        (DiskError, 2), (GoldenError, 1), (ReplicaError, 1), (ConfigError, 2),
    ],
)  # fmt: skip
def test_each_kind_of_end_has_its_code(error: type[RecipeError], code: int) -> None:
    assert exit_code(error("x")) == code


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EACCES, DiskError)])
def test_only_a_full_disk_ends_with_the_code_of_one(number: int, kind: type) -> None:
    assert type(disk_error(OSError(number, "x"), Path("y"))) is kind
