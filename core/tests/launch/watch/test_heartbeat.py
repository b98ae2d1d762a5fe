"""Heartbeats, the files that hold them, and the detection of stragglers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launch.watch import alert, heartbeat_files
from recipe_core.launch.watch.heartbeat import BACKWARD, Heartbeat, stacks
from recipe_core.launch.watch.heartbeat_files import HeartbeatFiles
from recipe_core.launch.watch.stragglers import STEPS, StragglerDetector
from recipe_core.testing.bounds import allowed


def test_activities_of_two_threads() -> None:
    heart = Heartbeat()
    heart.begin_step(3)
    heart.enter("backward", 1)
    with heart.waiting("exchange"):
        now = heart.activities[heart.main]
        assert (now.name, now.waits, now.step, now.micro, now.within) == ("exchange", True, 3, 1, "backward")
        with heart.during("inner"):
            assert heart.activities[heart.main].waits  # the outer one still does
    assert heart.activities[heart.main].name == "backward"
    assert not heart.activities[heart.main].waits

    def save() -> None:
        with heart.during("save"):
            assert len(heart.activities) == 2

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    assert list(heart.activities) == [heart.main]


def test_the_time_of_a_step_without_that_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    heart = Heartbeat()
    heart.begin_step(1)
    clock[0] += 2
    with heart.waiting("outer"):
        clock[0] += 10
        with heart.waiting("inner"):
            clock[0] += 20
    heart.enter(BACKWARD)
    with heart.waiting("exchange of gradients"):
        clock[0] += 40
    clock[0] += 80
    heart.enter("optimizer")
    clock[0] += 3
    heart.end_step()
    with heart.waiting("between the steps"):
        clock[0] += 160
    assert heart.work == (1, 2 + 3)


def test_a_step_of_the_heartbeat_costs_little() -> None:
    """Processor time, the least of several: other programs run beside the tests."""
    heart, least = Heartbeat(), float("inf")
    for _ in range(20):
        start = time.process_time()
        for step in range(200):
            heart.begin_step(step)
            for micro in range(2):
                heart.enter("forward", micro)
                heart.enter("backward", micro)
            with heart.waiting("exchange of gradients"):
                pass
            heart.enter("optimizer")
            heart.end_step()
            with heart.waiting("agreement of ranks"):
                pass
        least = min(least, (time.process_time() - start) / 200)
    assert least < allowed(20e-6)


def test_stacks_name_the_threads() -> None:
    end = threading.Event()
    names = ("feed_0", "watchdog-writer", "signals")
    threads = [threading.Thread(target=end.wait, name=name, daemon=True) for name in names]
    for thread in threads:
        thread.start()
    with ThreadPoolExecutor(1, "idle") as pool:
        pool.submit(int).result()
        deadline, found = time.monotonic() + 60, stacks()
        while not found["feed_0"][-1].endswith("in wait") or "idle_0" in found:  # on its way to where it waits
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
            found = stacks()
    end.set()
    for thread in threads:
        thread.join()
    assert found["MainThread"][-2].endswith("in test_stacks_name_the_threads")
    assert found["feed_0"][-1].endswith("in wait")
    assert [name for name in found if name.startswith(("watchdog", "signals", "idle"))] == []
    assert next(iter(found)) == "MainThread"


def entry(rank: int, beat: int, process: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "rank": rank, "world_size": 3, "process": process, "beat": beat, "host": "elsewhere", "pid": 1, "time": 1.0,
        "timeout": 9.0, "lanes": {}, "steps": 0, "work_seconds": 0.0, "ended": None, **more,
    }  # fmt: skip


def test_silence_is_what_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    here, there = HeartbeatFiles(tmp_path, 0, 3), HeartbeatFiles(tmp_path, 1, 3)
    here.write(entry(0, 1))
    there.write(entry(1, 1))
    for number in range(4):
        here.refresh(limit=1.0)
        assert here.statuses[1].silent == number
        assert here.statuses[2].silent == number
        clock[0] += 500.0 if number == 2 else 1.0  # we were stopped for a while, and saw nothing
    assert here.statuses[1].joined
    assert here.statuses[2].record is None
    there.write(entry(1, 2))
    here.refresh(limit=1.0)
    assert (here.statuses[1].silent, here.statuses[1].record) == (0.0, entry(1, 2))


def test_a_record_of_an_earlier_run_is_none_of_this_one(tmp_path: Path) -> None:
    before = HeartbeatFiles(tmp_path, 1, 2)
    before.write(entry(1, 70, ended={"code": 0}))
    os.utime(before.path(1), (1, 1))
    here = HeartbeatFiles(tmp_path, 0, 2)
    here.write(entry(0, 1))
    here.refresh(limit=1.0)
    assert (here.statuses[1].record is None, here.statuses[1].joined) == (False, False)
    HeartbeatFiles(tmp_path, 1, 2).write(entry(1, 1, process="b"))
    here.refresh(limit=1.0)
    assert here.statuses[1].joined
    assert here.statuses[1].record == entry(1, 1, process="b")


@pytest.mark.parametrize(
    ("start", "beats", "came"), [("one", 1, True), ("one", 2, False), ("another", 1, False), ("", 1, False)]
)
def test_the_word_of_a_rank_that_ended_before_this_one_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, beats: int, came: bool
) -> None:
    """Known by its start: what ranks of a start before it left behind may be as old."""
    monkeypatch.setattr(heartbeat_files, "start_of", lambda environment: "one")
    there = HeartbeatFiles(tmp_path, 1, 2)
    there.write(entry(1, beats, ended={"code": 2}) | {"start": start})
    os.utime(there.path(1), (1, 1))
    here = HeartbeatFiles(tmp_path, 0, 2)
    here.write(entry(0, 1))
    here.refresh(limit=1.0)
    assert here.statuses[1].joined == came


def test_a_record_that_is_replaced_while_it_is_read_keeps_its_own_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that start again together: one reads the other's last words of before while the other writes its first."""
    before = HeartbeatFiles(tmp_path, 1, 2)
    before.write(entry(1, 70, ended={"code": 75}))
    os.utime(before.path(1), (1, 1))
    here, there = HeartbeatFiles(tmp_path, 0, 2), HeartbeatFiles(tmp_path, 1, 2)
    here.write(entry(0, 1))
    read = heartbeat_files.parse_json

    def read_slowly(data: bytes) -> Any:
        found = read(data)
        there.write(entry(1, 1, process="b"))
        return found

    monkeypatch.setattr(heartbeat_files, "parse_json", read_slowly)
    here.refresh(limit=1.0)
    assert (here.statuses[1].record or {})["ended"] == {"code": 75}
    assert not here.statuses[1].joined
    monkeypatch.undo()
    here.refresh(limit=1.0)
    assert here.statuses[1].joined
    assert here.statuses[1].record == entry(1, 1, process="b")


def test_a_half_written_or_foreign_record_is_no_beat(tmp_path: Path) -> None:
    here, there = HeartbeatFiles(tmp_path, 0, 2), HeartbeatFiles(tmp_path, 1, 2)
    there.write(entry(1, 1, stacks="long " * 100))
    here.refresh(limit=1.0)
    there.write(entry(1, 2))  # shorter: nothing is left of the longer one
    here.refresh(limit=1.0)
    assert here.statuses[1].record == entry(1, 2)
    for text in ('{"rank": 1, "pro', json.dumps({**entry(1, 3), "steps": None}), '{"rank": 1}', "[]"):
        there.path(1).write_text(text)
        here.refresh(limit=1.0)
        assert here.statuses[1].record == entry(1, 2)


def test_a_process_of_this_host_that_is_gone(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here, there = HeartbeatFiles(tmp_path, 0, 2), HeartbeatFiles(tmp_path, 1, 2)
    there.write(entry(1, 1) | {"host": socket.gethostname(), "pid": child.pid})
    for _ in range(2):
        here.refresh(limit=1.0)
    assert not here.statuses[1].exited
    child.communicate()
    here.refresh(limit=1.0)
    assert here.statuses[1].exited


def test_a_slow_rank_is_named_once() -> None:
    said: list[str] = []
    detector = StragglerDetector(0, said.append)
    for window in range(5):
        assert said == [] or window > 2  # twice in a row
        detector.update({
            rank: entry(rank, window, steps=window * STEPS, work_seconds=window * STEPS * (2.0 if rank == 1 else 0.1))
            for rank in range(3)
        })  # fmt: skip
    assert said == [
        "rank 1 (host elsewhere) is slow: loader, forward and optimizer take 2 s a step there, and 0.1 s on the median "
        "rank; the others wait for it"
    ]
    assert detector.row() == pytest.approx(
        {"slowest_rank": 1, "slowest_rank_seconds": 2.0, "median_rank_seconds": 0.1}
    )  # fmt: skip


def test_equal_ranks_and_a_rank_that_began_anew_are_not_named() -> None:
    said: list[str] = []
    detector = StragglerDetector(0, said.append)
    for window in range(6):
        detector.update({
            rank: entry(rank, window, process=f"{rank}-{window // 2}", steps=window * STEPS, work_seconds=window * 0.3)
            for rank in range(2)
        })  # fmt: skip
    detector.update({0: entry(0, 9), 1: None})
    assert said == []


def test_an_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(alert, "SECONDS", 60)  # more than a busy machine needs to start a shell
    assert alert.run('echo "$RECIPE_HANG_RANKS" > told', {"RECIPE_HANG_RANKS": "3"}) is None
    assert Path("told").read_text() == "3\n"
    assert alert.run("echo no mail >&2; exit 4", {}) == (
        "train.on_hang: 'echo no mail >&2; exit 4' ended with exit code 4: no mail"
    )
    monkeypatch.setattr(alert, "SECONDS", 0.2)
    assert alert.run("sleep 60", {}) == "train.on_hang: 'sleep 60' took longer than 0.2 s and was killed"
