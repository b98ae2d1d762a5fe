"""The cause of a run's end: one answer from the records of its ranks and its supervisor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launch.ending import AGAIN, Ending, kind_of, read_ending, record_ending

FAILED = {"code": 70, "text": "has failed: list index out of range", "message": "list index out of range"}
MISTAKEN = {"code": 2, "text": "has failed before it met the others: train.lr: x", "message": "train.lr: x"}
STOPPED = {"code": 75, "text": "has failed: stopped", "message": "stopped"}
OVER = {"code": 0, "text": "has ended as if the run were over"}


def told(code: int, *ranks: int, lost: bool) -> dict[str, Any]:
    """Return the end of a rank that diagnosed why the run cannot continue."""
    text = f"rank {ranks[0]} of 3 is the one\nmore"
    hosts = [f"host{rank}" for rank in ranks]
    verdict = {"ranks": ranks, "lost": lost, "text": text, "speaker": 0, "hosts": hosts}
    return {"code": code, "text": "has failed: rank 1", "message": "rank 1", "verdict": verdict}


LOST, HUNG = told(75, 1, lost=True), told(69, 1, lost=False)


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., None]:
    """Return a function that writes the last heartbeat of each rank, given its end, in this order of time."""

    def write(*ends: dict[str, Any] | None) -> None:
        (tmp_path / "logs").mkdir(exist_ok=True)
        for rank, ended in enumerate(ends):
            lanes = {"main": {"name": "loader", "step": 4, "seconds": 1.0}}
            record = {"rank": rank, "host": f"host{rank}", "time": 100.0 + rank, "lanes": lanes, "ended": ended}
            (tmp_path / "logs" / f"rank-{rank}.beat.json").write_text(json.dumps(record))

    return write


@pytest.mark.parametrize(
    ("ends", "kind", "code", "line"),
    [
        ((LOST, FAILED, LOST), "bug", 70, "bug: rank 1 on host1: list index out of range (in 'loader' of step 4)"),
        ((LOST, FAILED, MISTAKEN), "bug", 70, "bug: rank 1 on host1: list index"),  # which came first
        ((LOST, LOST, MISTAKEN), "mistake", 2, "mistake: rank 2 on host2: train.lr: x (in 'loader' of step 4)"),
        ((LOST, None, LOST), "lost", 75, "lost: rank 1 on host1: rank 1 of 3 is the one (in 'loader' of step 4)"),
        ((LOST, HUNG, HUNG), "hung", 69, "hung: rank 1 on host1: rank 1 of 3 is the one (in 'loader' of step 4)"),
        ((STOPPED, STOPPED, STOPPED), "stopped", 75, "stopped: stopped"),
        ((STOPPED, LOST, STOPPED), "lost", 75, "lost: rank 1 on host1"),
        ((OVER, None, LOST), "lost", 75, "lost: rank 1 on host1"),
    ],
)
def test_of_ranks_that_nobody_supervises(
    tmp_path: Path, ranks: Callable[..., None], ends: tuple[Any, ...], kind: str, code: int, line: str
) -> None:
    ranks(*ends)
    ending = read_ending(tmp_path, 100.0)
    assert ending is not None
    assert (ending.kind, ending.exit_code, ending.again) == (kind, code, kind in AGAIN)
    assert ending.line().startswith(line)


def test_a_rank_that_never_came_has_its_host_from_the_verdict(tmp_path: Path, ranks: Callable[..., None]) -> None:
    ranks(told(75, 7, lost=True))
    ending = read_ending(tmp_path, 100.0)
    assert ending is not None
    assert ending.line() == "lost: rank 7 on host7: rank 7 of 3 is the one"


def test_a_line_that_announces_a_list_has_its_first_entry(tmp_path: Path) -> None:
    message = "2 problems:\n  - train.lr: no\n  - train.steps: no"
    assert Ending(kind="mistake", exit_code=2, message=message).line() == "mistake: 2 problems: train.lr: no"
    assert Ending(kind="bug", exit_code=70, message="no sample\nat all").line() == "bug: no sample"


def test_ranks_that_ended_in_good_order_say_nothing(tmp_path: Path, ranks: Callable[..., None]) -> None:
    """They were stopped or had finished: results.json says which."""
    ranks(OVER, OVER, OVER)
    assert read_ending(tmp_path, 100.0) is None


def test_of_supervised_ranks(tmp_path: Path, ranks: Callable[..., None]) -> None:
    """Only the supervisor knows what ended a rank without a record; only the ranks know whom they wait for."""
    killed = Ending(kind="killed", exit_code=137, message="was killed", rank=1, host="here", time=103.0)
    ranks(LOST, None)
    record_ending(tmp_path, killed)
    assert read_ending(tmp_path, 100.0) == killed
    record_ending(tmp_path, Ending(kind="hung", exit_code=69, message="rank 1 of 3 is the one", time=103.0))
    ranks(HUNG, None)
    found = read_ending(tmp_path, 100.0)
    assert found is not None
    assert (found.kind, found.rank, found.step) == ("hung", 1, 4)


def test_what_another_start_left_behind_does_not_count(tmp_path: Path, ranks: Callable[..., None]) -> None:
    ranks(LOST, FAILED)
    record_ending(tmp_path, Ending(kind="killed", exit_code=137, message="was killed", rank=1, time=90.0))
    assert read_ending(tmp_path, 102.0) is None
    found = read_ending(tmp_path, 101.0)
    assert found is not None
    assert found.kind == "bug"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"rank": "x"}', '{"rank": 0, "time": "soon", "ended": 3}', '{"rank": 0, "time": 101}',
     '{"rank": 0, "time": 101, "ended": {"code": null}}', '{"rank": 0, "time": 101, "ended": [1]}',
     '{"rank": 0, "time": 101, "ended": {"code": 75, "verdict": {"ranks": 3}}}'],
)  # fmt: skip
def test_damaged_records_tell_nothing(tmp_path: Path, ranks: Callable[..., None], text: str) -> None:
    ranks(None, FAILED)
    (tmp_path / "logs" / "rank-0.beat.json").write_text(text)
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "ending.json").write_text(text)
    found = read_ending(tmp_path, 100.0)
    assert found is not None
    assert (found.kind, found.rank) == ("bug", 1)


@pytest.mark.parametrize(
    ("code", "kind"), [(0, "finished"), (1, "finding"), (2, "mistake"), (75, "stopped"), (137, "killed"), (3, "bug")]
)
def test_where_only_an_exit_code_is_known(code: int, kind: str) -> None:
    assert kind_of(code) == kind
