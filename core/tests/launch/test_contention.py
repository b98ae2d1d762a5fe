"""Other programs on a run's cores, from a /proc of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recipe_core.launch import cores
from recipe_core.launch.contention import Contention
from recipe_core.launch.cores import OthersAtStart

RUN = 100
"""The first process of the run; 101 is its child, 102 the child of that one, and 200 is another program."""


class Machine:
    """Two cores of four, and the processes of a run and of others; times are seconds of a processor."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now = folder, 1000.0
        self.cores = [0.0, 0.0, 0.0, 0.0]
        self.used = {100: 0.0, 101: 0.0, 102: 0.0, 200: 0.0}
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
        monkeypatch.setattr(cores, "cpu_quota", lambda: None)
        self.write()
        self.asked = Contention(RUN, lambda: self.now, folder)

    def write(self) -> None:
        ticks = os.sysconf("SC_CLK_TCK")
        lines = ["cpu  1 2 3 4 5 6 7 8 0 0"]
        lines += [
            # user and stolen time; idle and iowait do not count
            f"cpu{number} {round(seconds * ticks) - 7} 0 0 999 999 0 0 7 0 0"
            for number, seconds in enumerate(self.cores)
        ]
        (self.folder / "stat").write_text("\n".join([*lines, "intr 1 2 3"]))
        (self.folder / "self").mkdir(exist_ok=True)
        for pid, parent in ((100, 1), (101, 100), (102, 101), (200, 1)):
            (self.folder / str(pid)).mkdir(exist_ok=True)
            half = round(self.used[pid] * ticks / 2)
            counters = f"{half} 0 0 {half}"  # its own time, and that of children that have ended
            (self.folder / str(pid) / "stat").write_text(
                f"{pid} (a name) x) S {parent} 9 9 0 -1 4 0 0 0 0 {counters} 20"
            )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def passes(self, seconds: float, *, run: float, others: float, cores: tuple[int, ...] = (0, 1)) -> str:
        """Let time pass in which the run and others use these cores; return the message."""
        self.now += seconds
        for core in cores:
            self.cores[core] += seconds * (run + others) / len(cores)
        for pid in (100, 101, 102):
            self.used[pid] += seconds * run / 3
        self.used[200] += seconds * others
        self.write()
        return self.asked()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path, monkeypatch)
    assert made.asked() == ""  # the first call begins
    return made


SAID = "other programs use 1.2 of the 2 cores, so that steps take longer"


def test_others_on_busy_cores_are_said_ever_more_rarely(machine: Machine) -> None:
    assert machine.passes(29, run=0.8, others=1.2) == ""
    said = [machine.passes(30, run=0.8, others=1.2) for _ in range(40)]
    assert said[0] == SAID
    assert set(said) == {SAID, ""}
    assert [number for number, text in enumerate(said) if text] == [0, 2, 6, 14, 30]  # after 1, 2, 4 and 8 minutes


@pytest.mark.parametrize(
    ("run", "others", "cores"),
    [
        (1.9, 0.1, (0, 1)),  # others use little
        (0.5, 0.9, (0, 1)),  # cores are idle
        (0.2, 1.8, (2, 3)),  # on cores that this process may not use
    ],
)
def test_nothing_is_said_where_others_take_nothing_from_the_run(
    run: float, others: float, cores: tuple[int, ...], machine: Machine
) -> None:
    assert [machine.passes(60, run=run, others=others, cores=cores) for _ in range(5)] == [""] * 5
    assert machine.passes(60, run=0.8, others=1.2) == SAID


def test_nothing_is_said_under_a_quota_or_without_proc(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cpu_quota", lambda: 1.5)
    assert machine.passes(60, run=0.8, others=1.2) == ""
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    (machine.folder / "stat").write_text("")
    machine.now += 600
    assert machine.asked() == ""


def test_a_machine_without_proc_says_nothing(tmp_path: Path) -> None:
    asked = Contention(os.getpid(), proc=tmp_path / "none")
    assert (asked(), asked()) == ("", "")


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_the_real_proc_is_read() -> None:
    now = [0.0]
    asked = Contention(os.getpid(), lambda: now[0])
    assert asked() == ""
    assert asked._before is not None
    assert asked._before.own > 0
    assert asked._before.own <= asked._before.busy + 1


@pytest.mark.parametrize(
    ("run", "others", "cores", "expected"),
    [
        (1.0, 0.0, (0, 1), False),  # this process alone
        (0.7, 1.3, (0, 1), True),  # two busy loops
        (1.0, 1.0, (0, 1), True),  # one of them
        (1.0, 0.3, (0, 1), False),
        (0.2, 1.8, (2, 3), False),  # on cores that this process may not use
    ],
)
def test_a_process_that_starts_sees_who_uses_its_cores(
    run: float, others: float, cores: tuple[int, ...], expected: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: machine.now)
    monkeypatch.setattr("time.process_time", lambda: machine.used[RUN] * 3)  # it has no children yet
    monkeypatch.setattr("time.sleep", machine.sleep)
    start = OthersAtStart(machine.folder)
    machine.passes(0.4, run=run, others=others, cores=cores)
    assert start.use_cores() is expected


def test_a_process_that_starts_waits_for_a_reading_that_means_something(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.monotonic", lambda: machine.now)
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    monkeypatch.setattr("time.sleep", lambda seconds: waited.append(seconds) or machine.sleep(seconds))  # type: ignore[func-returns-value]
    start = OthersAtStart(machine.folder)
    machine.now += 0.03
    assert not start.use_cores()
    machine.now += 3
    assert not start.use_cores()
    assert [round(one, 6) for one in waited] == [0.07, 0]


def test_a_process_that_starts_under_a_quota_or_without_proc_blames_nobody(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not OthersAtStart(tmp_path / "none").use_cores()
    start = OthersAtStart(machine.folder)
    monkeypatch.setattr(cores, "cpu_quota", lambda: 1.5)
    machine.passes(60, run=0.0, others=2.0)
    assert not start.use_cores()
