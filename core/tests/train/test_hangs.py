"""A run that hangs ends by itself and names the rank: real ranks of the toy recipe, one of them with a fault."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_hosts import Hosts, two_hosts, unavailable

from recipe_core.errors import ExitCode
from recipe_core.launch.ending import read_ending

TIMEOUT = 6.0
"""``train.timeout`` of these runs; it counts from the fault on."""
LATEST = 15.0
"""Seconds after the timeout by which every survivor has ended; on a slow or busy machine, more: :func:`in_time`."""
RANK = str(Path(__file__).with_name("faulty_rank.py"))


def line(fault: str, rank: int | str, step: int, *words: str) -> list[str]:
    common = ["toy", f"train.timeout={TIMEOUT}", "--out", "run"]
    return [sys.executable, RANK, fault, str(rank), str(step), "run", *common, *words]


def recipe(folder: Path, *arguments: str, rank: int | str = 1) -> subprocess.CompletedProcess[str]:
    """Two ranks on this machine."""
    return subprocess.run(
        [*line(arguments[0], rank, 3, *arguments[1:]), "--processes", "2"],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", "RECIPE_GRACE": "1"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


def in_time(folder: Path, begun: float) -> bool:
    """True if it is less than ``LATEST`` after the timeout, or than twice the time to reach the fault."""
    fault = float((folder / "injected").read_text())
    return time.time() - fault < TIMEOUT + max(LATEST, 2 * (fault - begun))


def record(folder: Path, rank: int) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "run" / "logs" / f"rank-{rank}.beat.json").read_text())
    return found


def ending(folder: Path, begun: float) -> tuple[str, int | None, str]:
    """Kind, rank and activity of the end, for `recipe status` and the batch script."""
    found = read_ending(folder / "run", begun)
    assert found is not None
    assert found.exit_code == {"hung": ExitCode.HUNG, "lost": ExitCode.STOPPED}.get(found.kind, found.exit_code)
    return found.kind, found.rank, found.activity


def test_a_loader_that_hangs(tmp_path: Path) -> None:
    alert = 'echo "$RECIPE_HANG_RANKS $RECIPE_HANG_KIND $RECIPE_HANG_STEP" >> alert'
    begun = time.time()
    done = recipe(tmp_path, "loader", f"train.on_hang={alert}")
    assert done.returncode == ExitCode.HUNG, done.stderr
    assert in_time(tmp_path, begun)
    assert re.match(r"recipe: rank 1 of 2 \(host .*\) has been in 'loader' of step 4 for \d+ s\n", done.stderr)
    assert re.search(
        r"Rank 1, thread feed_0, .*\n(  .*\n)*  File .*faulty_rank.py\", line \d+, in sleep\n", done.stderr
    )
    assert (tmp_path / "alert").read_text() == "1 hung 4\n"  # once, by rank 0
    assert ending(tmp_path, begun) == ("hung", 1, "loader")
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count('"loss"') == 3


def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    begun = time.time()
    done = recipe(tmp_path, "stop", "train.on_hang=exit 3")
    assert done.returncode == ExitCode.STOPPED, done.stderr
    assert in_time(tmp_path, begun)
    assert re.search(r"rank 1 of 2 \(host .*\) has given no sign of life for \d+ s: it is stopped or", done.stderr)
    assert "rank 0 of 2" in done.stderr  # which waits, and says so
    assert "train.on_hang: 'exit 3' ended with exit code 3" in done.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert ending(tmp_path, begun)[:2] == ("lost", 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        ("forward", ExitCode.HUNG, "has been in 'forward' of step 3, micro batch 0 for"),
        ("save", ExitCode.HUNG, "has been in 'save' of step 8 for"),
        ("leave", ExitCode.STOPPED, "exited without reporting an error"),
        (
            "exit",
            ExitCode.STOPPED,
            "has ended with exit code 0 before the run was over; last seen in 'forward' of step 3",
        ),
    ],
)
def test_other_faults_of_one_machine(tmp_path: Path, fault: str, code: int, text: str) -> None:
    begun = time.time()
    done = recipe(tmp_path, fault)
    assert done.returncode == code, done.stderr
    assert in_time(tmp_path, begun)
    assert re.search(rf"rank 1 of 2 \(host .*\) {re.escape(text)}", done.stderr), done.stderr
    assert ending(tmp_path, begun)[:2] == ("hung" if code == ExitCode.HUNG else "lost", 1)


@pytest.fixture(autouse=True)
def in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks' run folder and the mark of the fault are named from here."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("rank", [1, "all"])
def test_native_code_that_keeps_the_interpreter(tmp_path: Path, rank: int | str) -> None:
    """The rank can say nothing; the supervisor has it print its stack, and ends the run where no rank can."""
    begun = time.time()
    done = recipe(tmp_path, "native", rank=rank)
    assert in_time(tmp_path, begun)
    if rank == 1:
        assert done.returncode == ExitCode.STOPPED, done.stderr
        assert "has given no sign of life" in done.stderr
    else:
        assert done.returncode == ExitCode.HUNG, done.stderr
        assert "recipe: no rank has given a sign of life for" in done.stderr
    log = (tmp_path / "run" / "logs" / "rank-1.log").read_text()
    assert re.search(r'File ".*faulty_rank.py", line \d+ in <lambda>', log), log


@pytest.mark.slow
def test_a_run_that_is_suspended_goes_on(tmp_path: Path) -> None:
    """As a batch system does it, for longer than ``train.timeout``: all ranks, but not quite at the same moment."""
    process = subprocess.Popen([*line("slow", 1, 3, "train.steps=12"), "--processes", "2"])
    until(lambda: (tmp_path / "injected").exists() and steps(tmp_path) > 3)
    ranks = [int(str(record(tmp_path, rank)["pid"])) for rank in range(2)]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for rank in ranks:
            os.kill(rank, number)
            time.sleep(0.3)
        time.sleep(TIMEOUT + 3 if number == signal.SIGSTOP else 0)
    assert process.wait(300) == 0
    assert steps(tmp_path) == 12


on_two_hosts = pytest.mark.skipif(unavailable() is not None, reason=unavailable() or "")

# torchrun starts the same ranks.
LAUNCHERS = ["ranks", pytest.param("torchrun", marks=pytest.mark.long)]

# The launcher, the fault, the rank that has it, the ranks that survive, and the rank that their messages name.
CASES = [
    pytest.param(launcher, *case, marks=[pytest.mark.long] * (launcher == "torchrun" or case[0] in ("leave", "exit")))
    for launcher in ("ranks", "torchrun")
    for case in (
        ("loader", 1, (0, 1), "rank 1 of 2 (host second) has been in 'loader' of step 4"),
        ("stop", 1, (0,), "rank 1 of 2 (host second) has given no sign of life"),
        ("stop", 0, (1,), "rank 0 of 2 (host first) has given no sign of life"),
        ("leave", 1, (0,), "rank 1 of 2 (host second) has given no sign of life"),
        ("exit", 0, (1,), "rank 0 of 2 (host first) has ended with exit code 0 before the run was over"),
        ("save", 1, (0, 1), "rank 1 of 2 (host second) has been in 'save' of step 8"),
    )
]


@pytest.mark.slow
@on_two_hosts
@pytest.mark.parametrize(("launcher", "fault", "rank", "survivors", "text"), CASES)
def test_faults_of_one_of_two_hosts(
    tmp_path: Path, launcher: str, fault: str, rank: int, survivors: tuple[int, ...], text: str
) -> None:
    with two_hosts() as hosts:
        begun = time.time()
        processes = start(hosts, launcher, tmp_path, fault, rank)
        wait(processes, launcher, survivors, tmp_path, begun)
        for survivor in survivors:
            assert text in said(tmp_path, launcher, survivor), said(tmp_path, launcher, survivor)
            assert ending(tmp_path, begun)[:2] == ("hung" if fault in ("loader", "save") else "lost", rank)
            if launcher == "ranks":  # torchrun's agents end with 1, whatever the ranks end with
                code = ExitCode.HUNG if fault in ("loader", "save") else ExitCode.STOPPED
                assert processes[survivor].returncode == code


@pytest.mark.slow
@on_two_hosts
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_link_that_is_cut(tmp_path: Path, launcher: str) -> None:
    """The run folder is still there for both: each sees that the other lives, and that it cannot be reached."""
    with two_hosts() as hosts:
        begun = time.time()
        processes = start(hosts, launcher, tmp_path, "slow", 1, "train.steps=1000")
        until(lambda: (tmp_path / "injected").exists() and steps(tmp_path) > 3)
        (tmp_path / "injected").write_text(str(time.time()))
        hosts.cut()
        wait(processes, launcher, (0, 1), tmp_path, begun)
        for survivor, other in enumerate(("rank 1 of 2 (host second)", "rank 0 of 2 (host first)")):
            text = said(tmp_path, launcher, survivor)
            assert "all 2 ranks live and wait for each other: the network between first and second is cut" in text, text
            assert f"{other} has waited in " in text


@pytest.mark.slow
@on_two_hosts
@pytest.mark.parametrize("missing", [0, 1])
def test_a_peer_that_never_comes(tmp_path: Path, missing: int) -> None:
    with two_hosts() as hosts:
        here = 1 - missing
        begun = time.time()
        process = hosts.rank(here, line("none", 0, 0), tmp_path)
        until((tmp_path / "run" / "logs" / f"rank-{here}.beat.json").exists)  # it looks for the other from here on
        (tmp_path / "injected").write_text(str(time.time()))
        process.wait(300)
        assert in_time(tmp_path, begun)
        text = (tmp_path / f"rank-{here}.txt").read_text()
        assert f"rank {missing} of 2 has not come within {TIMEOUT:g} s" in text, text
        assert process.returncode == ExitCode.STOPPED


@pytest.mark.slow
@on_two_hosts
@pytest.mark.parametrize("mistaken", [0, 1])
def test_a_mistake_on_one_host_ends_the_other_long_before_the_timeout(tmp_path: Path, mistaken: int) -> None:
    """It ends before it could meet the other; the mistake is the cause, whatever the other ends with."""
    with two_hosts() as hosts:
        (tmp_path / "injected").write_text(str(time.time()))
        words = [*line("mistake", mistaken, 0), "train.timeout=600"]
        processes = hosts.ranks(words, tmp_path, TORCHELASTIC_RUN_ID="one")
        codes = [process.wait(300) for process in processes]
    assert (codes[mistaken], codes[1 - mistaken]) == (ExitCode.MISTAKE, ExitCode.STOPPED)
    name = f"rank {mistaken} of 2 (host {('first', 'second')[mistaken]})"
    text = said(tmp_path, "ranks", 1 - mistaken)
    assert f"{name} has failed before it met the others: train.lr: " in text, text
    assert ending(tmp_path, 0.0)[:2] == ("mistake", mistaken)


@pytest.mark.slow
@on_two_hosts
@pytest.mark.parametrize("more", [0, 1])
def test_hosts_that_were_told_different_numbers_of_ranks(tmp_path: Path, more: int) -> None:
    with two_hosts() as hosts:
        (tmp_path / "injected").write_text(str(time.time()))
        words = [*line("none", 0, 0), "train.timeout=600"]
        processes = [
            hosts.rank(number, words, tmp_path, **{"WORLD_SIZE": "4"} if number == more else {}) for number in (0, 1)
        ]
        codes = [process.wait(300) for process in processes]
    told = {more: 4, 1 - more: 2}
    texts = [(tmp_path / f"rank-{number}.txt").read_text() for number in (0, 1)]
    named = [f"{told[number]} on rank {number} ({('first', 'second')[number]})" for number in (0, 1)]
    # One of them may have read of the other's end before it saw the difference itself.
    found = [number for number in (0, 1) if "has failed: the ranks do not agree" not in texts[number]]
    assert found
    for number in found:
        assert f"number of ranks (WORLD_SIZE): {named[number]}, {named[1 - number]}" in texts[number]
        assert codes[number] == ExitCode.MISTAKE
    for number in {0, 1} - set(found):
        assert f"rank {1 - number} of {told[number]} (host " in texts[number]
        assert codes[number] == ExitCode.STOPPED
    assert ending(tmp_path, 0.0)[0] == "mistake"


@pytest.mark.slow
@on_two_hosts
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_that_is_lost(tmp_path: Path, launcher: str, lost: int) -> None:
    """That of rank 0 has the store through which the ranks met."""
    with two_hosts() as hosts:
        begun = time.time()
        processes = start(hosts, launcher, tmp_path, "slow", 1, "train.steps=1000")
        until(lambda: (tmp_path / "injected").exists() and steps(tmp_path) > 3)
        (tmp_path / "injected").write_text(str(time.time()))
        hosts.cut()
        (hosts.first, hosts.second)[lost].kill()
        wait(processes, launcher, (1 - lost,), tmp_path, begun)
        name = ("first", "second")[lost]
        text = said(tmp_path, launcher, 1 - lost)
        assert f"rank {lost} of 2 (host {name}) has given no sign of life for" in text, text


@pytest.mark.slow
@on_two_hosts
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_is_twenty_times_slower(tmp_path: Path, launcher: str) -> None:
    with two_hosts() as hosts:
        processes = start(hosts, launcher, tmp_path, "slow", 1, "train.steps=16", "train.log_stragglers=true")
        assert [process.wait(400) for process in processes] == [0, 0]
    text = said(tmp_path, launcher, 0)
    assert (
        len(
            re.findall(
                r"warning: rank 1 \(host second\) is slow: loader, forward and optimizer take [\d.]+ s a step", text
            )
        )
        == 1
    ), text
    rows = [json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["slowest_rank"] == 1
    assert rows[-1]["slowest_rank_seconds"] > 20 * rows[-1]["median_rank_seconds"]


def start(
    hosts: Hosts, launcher: str, folder: Path, fault: str, rank: int, *words: str
) -> list[subprocess.Popen[bytes]]:
    command = line(fault, rank, 3, *words)
    if launcher == "ranks":
        return hosts.ranks(command, folder)
    return hosts.torchrun(command[1:], folder)


def said(folder: Path, launcher: str, rank: int) -> str:
    return (folder / f"{'rank' if launcher == 'ranks' else 'node'}-{rank}.txt").read_text()


def steps(folder: Path) -> int:
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.read_text().count('"loss"') if metrics.exists() else 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def wait(
    processes: list[subprocess.Popen[bytes]], launcher: str, survivors: tuple[int, ...], folder: Path, begun: float
) -> None:
    """Wait for the ranks that survive; each ends in time.

    The agents of torchrun may outlive them by minutes: they ask a store that cannot be reached any more.
    """
    until(lambda: (folder / "injected").exists())
    for rank in survivors:
        until(lambda rank=rank: processes[rank].poll() is not None or f"(rank {rank})" in said(folder, launcher, rank))
        assert in_time(folder, begun)
        if launcher == "ranks":
            processes[rank].wait(60)
