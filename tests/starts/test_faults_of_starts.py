"""Each fault under each start that needs no batch system: the end of the run, its report, and how it resumes.

``nox -s hosts`` runs these tests. The machines are network namespaces of this one, with a link between them.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import slow_toy
from fault_table import ROWS, Row
from simulated_hosts import Hosts, two_hosts, unavailable
from slow_toy import curve

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(900)]
CAMPAIGN = Path(__file__).parents[1] / "faults" / "campaign"
TIMEOUT = 15
"""``train.timeout``: only a hanging rank and a silent link take this long."""
LINE = ("run", "slow", "data.seconds=0.1", f"train.timeout={TIMEOUT}", "--out", "run/out")
SOON = 25.0
"""Seconds within which all has ended; counted from ``TIMEOUT`` where the ranks wait for a message in vain."""


class Start:
    """A way to start two ranks, and the processes that it started last."""

    name: str
    processes: list[subprocess.Popen[bytes]]

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack

    def begin(self, *, mistaken: bool = False) -> None:
        """Start the run; ``mistaken``: the second machine, if there is one, has another environment."""
        raise NotImplementedError


class Processes(Start):
    """``recipe run --processes 2``."""

    name = "--processes 2"

    def begin(self, *, mistaken: bool = False) -> None:
        words = [sys.executable, "-m", "recipe_core.cli", *LINE, "--processes", "2", *["train.lr=-1"] * mistaken]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)  # and thereby its ranks
        self.processes = [process]


class OnHosts(Start):
    """One rank on each of two machines."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        self.hosts: Hosts = stack.enter_context(two_hosts())


class Ranks(OnHosts):
    """Ranks that are started one by one, as by a script with ssh."""

    name = "two hosts"

    def begin(self, *, mistaken: bool = False) -> None:
        words = [sys.executable, "-m", "recipe_core.cli", *LINE]
        other = {"NCCL_ALGO": "Ring"} if mistaken else {}
        self.processes = [
            self.hosts.rank(number, words, self.folder, **(other if number else {})) for number in range(2)
        ]


class Torchrun(OnHosts):
    """Ranks under torchrun agents without restarts."""

    name = "torchrun"

    def begin(self, *, mistaken: bool = False) -> None:
        program = self.folder / "program.py"
        other = 'if os.uname().nodename == "second":\n    os.environ["NCCL_ALGO"] = "Ring"\n' if mistaken else ""
        program.write_text(f"import os, sys\n{other}from recipe_core.cli.__main__ import main\nsys.exit(main())\n")
        self.processes = self.hosts.torchrun([str(program), *LINE], self.folder)


def break_rank(fault: str, start: Start) -> None:
    slow_toy.break_rank(start.folder, fault)


def node_down(start: Start) -> None:
    """Cut the link first, so that it does not report the end of the processes."""
    assert isinstance(start, OnHosts)
    start.hosts.cut()
    start.hosts.second.kill()


def link_cut(start: Start) -> None:
    assert isinstance(start, OnHosts)
    start.hosts.cut()


def full_disk(start: Start) -> None:
    import filled

    filled.fill(start.folder / "run", "bytes", 0)


def told_to_stop(start: Start) -> None:
    """Send the signal that a batch system sends before the time limit."""
    for process in start.processes:
        process.send_signal(signal.SIGTERM)


FAULTS: dict[str, Callable[[Start], None]] = {
    **{name: partial(break_rank, name) for name in slow_toy.FAULTS},
    "node down": node_down,
    "link cut": link_cut,
    "full disk": full_disk,
    "told to stop": told_to_stop,
}
CODES: dict[type[Start], dict[str, str]] = {
    Processes: {
        "killed": "137", "segfault": "139", "abort": "134", "exception": "70", "hang": "69", "full disk": "74",
        "mistake": "2",
    },
    Ranks: {
        "killed": "75, -9", "segfault": "75, -11", "abort": "75, -6", "exception": "75, 70", "hang": "69, 69",
        "mistake": "2, 2", "node down": "75, -9", "full disk": "74, 74",
    },
    Torchrun: {"node down": "1, -9", "link cut": "-9, -9"},
}  # fmt: skip
"""Exit codes of the started processes, where they are not the usual ones."""
USUAL: dict[type[Start], str] = {Processes: "75", Ranks: "75, 75", Torchrun: "1, 1"}
"""torchrun always ends with 1; its agents take long to end if they cannot reach each other."""
SILENT = r"stopped \(exit code 75\): lost: rank 1 on second: rank 1 of 2 .* has given no sign of life for \d+ s"
ENDED = r"killed \(exit code 1\d\d\): killed: rank 1 on \S+: rank 1 (was killed|crashed in native code) \(SIG\w+\); "
SAID: dict[str, str] = {
    "killed": SILENT,
    "segfault": SILENT,
    "abort": SILENT,
    "exception": r"failed \(exit code 70\): bug: rank 1 on \S+: no such step",
    "hang": r"failed \(exit code 69\): hung: rank 1 on \S+: rank 1 of 2 .* has been in 'loader' of step \d+ for \d+ s",
    "mistake": r"recipe status: run/out: expected a run folder",  # the run refused to create one
    "node down": SILENT,
    "link cut": r"stopped \(exit code 75\): lost: rank \d on \w+: all 2 ranks live and wait for each other",
    "full disk": r"failed \(exit code 74\): disk: rank \d on \S+: run/out/checkpoints/step-\d+ .* was not saved",
    "told to stop": r"stopped \(exit code 75\): SIGTERM",
}
"""The output of `recipe status`, as a pattern."""
TIMED = ("hang", "node down", "link cut")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of the run, on a small disk of its own; the slow toy is its only plugin."""
    monkeypatch.syspath_prepend(str(CAMPAIGN))
    import filled

    if why := filled.unavailable() or unavailable():
        pytest.skip(why)
    slow_toy.install(tmp_path, monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RECIPE_GRACE", "1")
    monkeypatch.chdir(tmp_path)
    with filled.mounted(tmp_path / "run"):
        yield tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float]]:
    """Return the losses of a run without a fault."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        slow_toy.install(out.parent, patch)
        patch.setenv("OMP_NUM_THREADS", "1")
        command("run", "slow", "--processes", "2", "--out", str(out))
    return curve(out)


def command(*words: str) -> str:
    """Return the output of ``recipe``."""
    line = [sys.executable, "-m", "recipe_core.cli", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout or done.stderr


def underway() -> bool:
    """Return True once a checkpoint is saved and some steps followed."""
    path = Path("run/out/metrics.jsonl")
    return path.exists() and path.read_bytes().count(b"\n") >= 13


def until(ready: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def over(start: Start, seconds: float) -> None:
    """Wait for the end of all started processes."""
    until(lambda: None not in [process.poll() for process in start.processes], seconds)
    if isinstance(start, OnHosts):
        until(lambda: not [pid for host in start.hosts for pid in host.processes()], seconds)


def ranks_over(start: Torchrun, seconds: float) -> None:
    """Wait for the end of the ranks, and end their agents."""
    agents = {process.pid for process in start.processes}
    until(lambda: agents.issuperset(pid for host in start.hosts for pid in host.processes()), seconds)
    for process in start.processes:
        process.kill()
        process.wait()


CELLS = [
    pytest.param(kind, fault, id=f"{fault}, {kind.name}")
    for kind in (Processes, Ranks, Torchrun)
    for fault in (*FAULTS, "mistake")
    if kind is not Processes or fault not in ("node down", "link cut")
]


@pytest.mark.parametrize(("kind", "fault"), CELLS)
def test_fault(here: Path, kind: type[Start], fault: str, whole: list[tuple[int, float]]) -> None:
    with ExitStack() as stack:
        start = kind(here, stack)
        start.begin(mistaken=fault == "mistake")
        if fault != "mistake":
            until(underway, 120)
            FAULTS[fault](start)
        began = time.monotonic()
        if isinstance(start, Torchrun) and fault == "link cut":
            ranks_over(start, 120)
        else:
            over(start, 120)
        seconds = time.monotonic() - began
        codes = ", ".join(str(process.returncode) for process in start.processes)
        status = command("status", "run/out").partition("\n")[0].removeprefix("run/out: ")
        mend(start, fault)
        start.begin()
        over(start, 200)
        same = curve(Path("run/out")) == whole
        ROWS.append(Row(fault, kind.name, codes, status, "no", seconds, "equal" if same else "OTHER"))
    assert codes == CODES[kind].get(fault, USUAL[kind])
    seen = kind is Processes and fault in ("killed", "segfault", "abort")  # by the parent of the rank
    assert re.match(ENDED if seen else SAID[fault], status), status
    assert same
    if fault != "mistake":  # found before the first step: the run takes as long as a start
        assert seconds < (TIMEOUT if fault in TIMED else 0) + SOON


def mend(start: Start, fault: str) -> None:
    """Undo the fault."""
    if fault in ("node down", "link cut"):
        assert isinstance(start, OnHosts)
        start.hosts.mend()
    if fault == "full disk":
        import filled

        filled.make_room(start.folder / "run")
