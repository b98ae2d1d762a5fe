"""Verdicts on ranks that hang, from records as the ranks write them."""

from __future__ import annotations

from typing import Any

import pytest

from recipe_core.launch.watch.board import Sight
from recipe_core.launch.watch.verdict import Case, Verdict, contradiction


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


def sight(rank: int, name: str, **options: Any) -> Sight:
    return Sight(record(rank, name, **options), came=True)


def judge(mine: dict[str, Any], *others: Sight | None, lane: str = "main") -> Verdict:
    sights = {number: other or Sight() for number, other in enumerate(others)}
    return Case(rank=mine["rank"], mine=mine, sights=sights, lane=lane, timeout=10.0, quiet=3.0).judge()


WAITING = record(0, "agreement of ranks", waits=True)


def test_those_that_do_not_wait_are_late() -> None:
    stacks = {"MainThread": ['File "a.py", line 3, in read']}
    pending = [{"name": "gloo:all_reduce", "group": "0:default_pg", "number": 7}]
    found = judge(
        WAITING, None, sight(1, "barrier", waits=True), sight(2, "loader", stacks=stacks, pending=pending),
        sight(3, "save"),
    )  # fmt: skip
    assert (found.ranks, found.lost, found.speaker) == ((2, 3), False, 0)
    assert found.text.splitlines() == [
        "rank 2 of 4 (host host-1) has been in 'loader' of step 5 for 10 s",
        "rank 3 of 4 (host host-1) has been in 'save' of step 5 for 10 s",
        "rank 0 of 4 (host host-0) has waited in 'agreement of ranks' of step 5 for 10 s",
        "If it was only slow, raise train.timeout (10 s)",
        "Rank 2, thread MainThread, innermost call last:",
        '  File "a.py", line 3, in read',
        "Rank 2, under way: gloo:all_reduce, number 7 of group 0:default_pg",
    ]


def test_of_several_that_do_not_wait_those_that_have_stood_for_long() -> None:
    found = judge(WAITING, None, sight(1, "forward", seconds=0.1), sight(2, "forward"))
    assert found.ranks == (2,)
    found = judge(WAITING, None, sight(1, "evaluation", seconds=0.1), sight(2, "barrier", waits=True))
    assert found.ranks == (1,)  # it goes on in short activities, too slowly


def test_this_rank_itself() -> None:
    found = judge(record(1, "loader"), sight(0, "barrier", waits=True), None)
    assert (found.ranks, found.speaker) == ((1,), 0)
    found = judge(record(1, "loader"), sight(0, "loader"), None)
    assert (sorted(found.ranks), found.speaker) == ([0, 1], 0)


def test_one_process() -> None:
    found = judge(record(0, "loader"), None)
    assert (found.ranks, found.lost, found.speaker) == ((0,), False, 0)
    assert found.text.startswith("the run has been in 'loader' of step 5 for 10 s\n")


def test_a_lost_rank_comes_before_one_that_is_late() -> None:
    silent = sight(1, "forward")
    silent.silent = 8.0
    found = judge(WAITING, None, silent, sight(2, "loader"))
    assert (found.ranks, found.lost, found.speaker) == ((1,), True, 0)
    assert "rank 1 of 3 (host host-0) has given no sign of life for 8 s" in found.text
    assert "last seen in 'forward' of step 5" in found.text


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (Sight(), "rank 1 of 2 has not come within 10 s (train.timeout)"),
        (Sight(record(1, "forward"), came=False), "rank 1 of 2 (host host-0) has not come within 10 s"),
        (Sight(record(1, "forward"), came=True, gone=True), "rank 1 of 2 (host host-0) is gone, and left no word"),
        (
            sight(1, "forward", ended={"code": 2, "text": "has failed: no such file"}),
            "rank 1 of 2 (host host-0) has failed: no such file; last seen in 'forward' of step 5",
        ),
    ],
)
def test_lost_ranks(other: Sight, text: str) -> None:
    found = judge(WAITING, None, other)
    assert (found.ranks, found.lost) == ((1,), True)
    assert found.text.startswith(text)


def test_of_a_rank_that_never_came_the_launcher_knows_the_host() -> None:
    former = Sight(record(1, "loader") | {"host": "of-an-earlier-start"}, expected="n2")
    for absent in (former, Sight(expected="n2")):
        found = judge(WAITING, None, absent)
        assert (found.ranks, found.hosts) == ((1,), ("n2",))
        assert found.text.startswith("rank 1 of 2 (host n2) has not come within 10 s")


def test_an_earlier_verdict_is_taken_over() -> None:
    verdict = {"ranks": [2], "lost": False, "text": "rank 2 hangs", "speaker": 1, "hosts": ["n2"]}
    ended = sight(1, "barrier", waits=True, ended={"code": 69, "text": "has failed", "verdict": verdict})
    assert judge(WAITING, None, ended, sight(2, "loader")) == Verdict((2,), False, "rank 2 hangs", 1, ("n2",))


def test_all_wait_and_one_is_behind() -> None:
    mine = record(0, "backward", waits=True, pending=[{"name": "a", "group": "0", "number": 9}])
    behind = sight(1, "backward", waits=True, pending=[{"name": "a", "group": "0", "number": 8}])
    found = judge(mine, None, behind)
    assert (found.ranks, found.lost) == ((1,), False)
    assert "is behind, and waits itself: it has waited in 'backward'" in found.text
    # NCCL's: its device has not come to the collective that the other one's has begun.
    mine["pending"][0]["started"] = True
    behind.record = record(1, "backward", waits=True, pending=[{"name": "a", "group": "0", "number": 9}])
    assert judge(mine, None, behind).ranks == (1,)


def test_all_wait_for_each_other() -> None:
    waiting = [sight(rank, "barrier", waits=True) for rank in range(4)]
    found = judge(WAITING, None, *waiting[1:])
    assert (found.ranks, found.lost, found.speaker) == ((2, 3), True, 0)  # those of the other host
    assert found.text.splitlines()[0] == (
        "all 4 ranks live and wait for each other: the network between host-0 and host-1 is cut, or they call "
        "different collectives"
    )
    assert "rank 2 of 4 (host host-1) has waited in 'barrier' of step 5 for 10 s" in found.text
    assert judge(WAITING, None, waiting[1]).ranks == (1,)


def test_the_lane_of_a_save_beside_training() -> None:
    mine = record(0, "forward")
    mine["lanes"]["save"] = {"name": "gather from all ranks", "waits": True, "within": "save", "seconds": 10.0}
    late = record(1, "agreement of ranks", waits=True)
    late["lanes"]["save"] = {"name": "save", "waits": False, "seconds": 10.0}
    found = judge(mine, None, Sight(late, came=True), lane="save")
    assert found.ranks == (1,)
    assert "rank 0 of 2 (host host-0) has waited in 'gather from all ranks' (save) for 10 s" in found.text


def test_many_ranks_are_counted() -> None:
    found = judge(WAITING, None, *(Sight() for _ in range(100)))
    assert len(found.ranks) == 100
    assert "and 92 more ranks" in found.text
    assert len(found.text.splitlines()) == 11


def test_ranks_that_were_told_different_numbers_of_ranks() -> None:
    mine = record(0, "start", world_size=4)
    fellow, other = sight(1, "start", world_size=4), sight(3, "start", world_size=2)
    assert contradiction(mine, {0: Sight(), 1: fellow, 2: Sight()}) is None
    assert contradiction(mine, {0: Sight(), 1: fellow, 2: Sight(), 3: other}) == (
        "the ranks do not agree, and nothing was computed:\n"
        "  - number of ranks (WORLD_SIZE): 4 on rank 0 (host-0), 2 on rank 3 (host-1)\n"
        "Start all of them with the same number"
    )


@pytest.mark.parametrize(
    "other",
    [
        Sight(record(1, "start", world_size=2), came=False),
        sight(1, "start", world_size=2, ended={"code": 75, "text": "is gone"}),
    ],
)
def test_what_an_earlier_start_left_behind_contradicts_nobody(other: Sight) -> None:
    assert contradiction(record(0, "start", world_size=4), {0: Sight(), 1: other}) is None
