"""Diagnoses of ranks that hang, from records as the ranks write them."""

from __future__ import annotations

from typing import Any

import pytest

from recipe_core.launch.watch.diagnosis import Diagnosis, Evidence, world_size_conflict
from recipe_core.launch.watch.heartbeat_files import RankStatus


def record(rank: int, name: str, *, waits: bool = False, seconds: float = 10.0, **more: Any) -> dict[str, Any]:
    lane = {"name": name, "waits": waits, "step": 5, "micro": None, "within": "", "seconds": seconds}
    return {
        "rank": rank,
        "host": f"host-{rank // 2}",
        "lanes": {"main": lane},
        "stacks": {},
        "pending": [],
        "ended": None,
        **more,
    }


def status(rank: int, name: str, **options: Any) -> RankStatus:
    return RankStatus(record(rank, name, **options), joined=True)


def diagnose(mine: dict[str, Any], *others: RankStatus | None, lane: str = "main") -> Diagnosis:
    statuses = {number: other or RankStatus() for number, other in enumerate(others)}
    return Evidence(
        rank=mine["rank"], own_record=mine, statuses=statuses, lane=lane, timeout=10.0, quiet=3.0
    ).diagnose()


WAITING = record(0, "agreement of ranks", waits=True)


def test_those_that_do_not_wait_are_late() -> None:
    stacks = {"MainThread": ['File "a.py", line 3, in read']}
    pending = [{"name": "gloo:all_reduce", "group": "0:default_pg", "number": 7}]
    diagnosis = diagnose(
        WAITING, None, status(1, "barrier", waits=True), status(2, "loader", stacks=stacks, pending=pending),
        status(3, "save"),
    )  # fmt: skip
    assert (diagnosis.ranks, diagnosis.lost, diagnosis.speaker) == ((2, 3), False, 0)
    assert diagnosis.text.splitlines() == [
        "rank 2 of 4 (host host-1) has been in 'loader' of step 5 for 10 s",
        "rank 3 of 4 (host host-1) has been in 'save' of step 5 for 10 s",
        "rank 0 of 4 (host host-0) has waited in 'agreement of ranks' of step 5 for 10 s",
        "If it was only slow, raise train.timeout (10 s)",
        "Rank 2, thread MainThread, innermost call last:",
        '  File "a.py", line 3, in read',
        "Rank 2, under way: gloo:all_reduce, number 7 of group 0:default_pg",
    ]


def test_of_several_that_do_not_wait_those_that_have_stood_for_long() -> None:
    diagnosis = diagnose(WAITING, None, status(1, "forward", seconds=0.1), status(2, "forward"))
    assert diagnosis.ranks == (2,)
    diagnosis = diagnose(WAITING, None, status(1, "evaluation", seconds=0.1), status(2, "barrier", waits=True))
    assert diagnosis.ranks == (1,)  # its activities are short, but too slow


def test_this_rank_itself() -> None:
    diagnosis = diagnose(record(1, "loader"), status(0, "barrier", waits=True), None)
    assert (diagnosis.ranks, diagnosis.speaker) == ((1,), 0)
    diagnosis = diagnose(record(1, "loader"), status(0, "loader"), None)
    assert (sorted(diagnosis.ranks), diagnosis.speaker) == ([0, 1], 0)


def test_one_process() -> None:
    diagnosis = diagnose(record(0, "loader"), None)
    assert (diagnosis.ranks, diagnosis.lost, diagnosis.speaker) == ((0,), False, 0)
    assert diagnosis.text.startswith("the run has been in 'loader' of step 5 for 10 s\n")


def test_a_lost_rank_comes_before_one_that_is_late() -> None:
    silent = status(1, "forward")
    silent.silent = 8.0
    diagnosis = diagnose(WAITING, None, silent, status(2, "loader"))
    assert (diagnosis.ranks, diagnosis.lost, diagnosis.speaker) == ((1,), True, 0)
    assert "rank 1 of 3 (host host-0) has given no sign of life for 8 s" in diagnosis.text
    assert "last seen in 'forward' of step 5" in diagnosis.text


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (RankStatus(), "rank 1 of 2 has not come within 10 s (train.timeout)"),
        (RankStatus(record(1, "forward"), joined=False), "rank 1 of 2 (host host-0) has not come within 10 s"),
        (
            RankStatus(record(1, "forward"), joined=True, exited=True),
            "rank 1 of 2 (host host-0) exited without reporting an error",
        ),
        (
            status(1, "forward", ended={"code": 2, "text": "has failed: no such file"}),
            "rank 1 of 2 (host host-0) has failed: no such file; last seen in 'forward' of step 5",
        ),
    ],
)
def test_lost_ranks(other: RankStatus, text: str) -> None:
    diagnosis = diagnose(WAITING, None, other)
    assert (diagnosis.ranks, diagnosis.lost) == ((1,), True)
    assert diagnosis.text.startswith(text)


def test_of_a_rank_that_never_came_the_launcher_knows_the_host() -> None:
    former = RankStatus(record(1, "loader") | {"host": "of-an-earlier-start"}, expected="n2")
    for absent in (former, RankStatus(expected="n2")):
        diagnosis = diagnose(WAITING, None, absent)
        assert (diagnosis.ranks, diagnosis.hosts) == ((1,), ("n2",))
        assert diagnosis.text.startswith("rank 1 of 2 (host n2) has not come within 10 s")


def test_an_earlier_diagnosis_is_returned() -> None:
    verdict = {"ranks": [2], "lost": False, "text": "rank 2 hangs", "speaker": 1, "hosts": ["n2"]}
    ended = status(1, "barrier", waits=True, ended={"code": 69, "text": "has failed", "verdict": verdict})
    assert diagnose(WAITING, None, ended, status(2, "loader")) == Diagnosis((2,), False, "rank 2 hangs", 1, ("n2",))


def test_all_wait_and_one_is_behind() -> None:
    mine = record(0, "backward", waits=True, pending=[{"name": "a", "group": "0", "number": 9}])
    behind = status(1, "backward", waits=True, pending=[{"name": "a", "group": "0", "number": 8}])
    diagnosis = diagnose(mine, None, behind)
    assert (diagnosis.ranks, diagnosis.lost) == ((1,), False)
    assert "is behind, and waits itself: it has waited in 'backward'" in diagnosis.text
    # NCCL's: its device has not reached the collective that the other rank's device has started.
    mine["pending"][0]["started"] = True
    behind.record = record(1, "backward", waits=True, pending=[{"name": "a", "group": "0", "number": 9}])
    assert diagnose(mine, None, behind).ranks == (1,)


def test_all_wait_for_each_other() -> None:
    waiting = [status(rank, "barrier", waits=True) for rank in range(4)]
    diagnosis = diagnose(WAITING, None, *waiting[1:])
    assert (diagnosis.ranks, diagnosis.lost, diagnosis.speaker) == ((2, 3), True, 0)  # those of the other host
    assert diagnosis.text.splitlines()[0] == (
        "all 4 ranks live and wait for each other: the network between host-0 and host-1 is cut, or they call "
        "different collectives"
    )
    assert "rank 2 of 4 (host host-1) has waited in 'barrier' of step 5 for 10 s" in diagnosis.text
    assert diagnose(WAITING, None, waiting[1]).ranks == (1,)


def test_the_lane_of_a_save_beside_training() -> None:
    mine = record(0, "forward")
    mine["lanes"]["save"] = {"name": "gather from all ranks", "waits": True, "within": "save", "seconds": 10.0}
    late = record(1, "agreement of ranks", waits=True)
    late["lanes"]["save"] = {"name": "save", "waits": False, "seconds": 10.0}
    diagnosis = diagnose(mine, None, RankStatus(late, joined=True), lane="save")
    assert diagnosis.ranks == (1,)
    assert "rank 0 of 2 (host host-0) has waited in 'gather from all ranks' (save) for 10 s" in diagnosis.text


def test_many_ranks_are_counted() -> None:
    diagnosis = diagnose(WAITING, None, *(RankStatus() for _ in range(100)))
    assert len(diagnosis.ranks) == 100
    assert "and 92 more ranks" in diagnosis.text
    assert len(diagnosis.text.splitlines()) == 11


def test_ranks_that_were_told_different_numbers_of_ranks() -> None:
    mine = record(0, "start", world_size=4)
    fellow, other = status(1, "start", world_size=4), status(3, "start", world_size=2)
    assert world_size_conflict(mine, {0: RankStatus(), 1: fellow, 2: RankStatus()}) is None
    assert world_size_conflict(mine, {0: RankStatus(), 1: fellow, 2: RankStatus(), 3: other}) == (
        "the ranks do not agree, and nothing was computed:\n"
        "  - number of ranks (WORLD_SIZE): 4 on rank 0 (host-0), 2 on rank 3 (host-1)\n"
        "Start all of them with the same number"
    )


@pytest.mark.parametrize(
    "other",
    [
        RankStatus(record(1, "start", world_size=2), joined=False),
        status(1, "start", world_size=2, ended={"code": 75, "text": "is gone"}),
    ],
)
def test_what_an_earlier_start_left_behind_contradicts_nobody(other: RankStatus) -> None:
    assert world_size_conflict(record(0, "start", world_size=4), {0: RankStatus(), 1: other}) is None
