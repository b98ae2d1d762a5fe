"""The record of the process that trains in a run folder, by which later commands find it. Imports no torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from recipe_core.errors import DiskError
from recipe_core.files import write_text
from recipe_core.files.documents import read_record
from recipe_core.launch.failures import exit_code, first_line, message_of
from recipe_core.launch.host import process_counters
from recipe_core.launch.stop import recorded_by
from recipe_core.launch.worker import Worker, worker

FILE = Path("launch") / "process.json"


@dataclass(frozen=True, kw_only=True)
class Process:
    """Rank 0 of a run, or the only process of one."""

    host: str
    boot: str
    """Boot id of the machine, since process numbers are reused after a reboot; empty if the system gives none."""
    pid: int
    started: str
    """Start time of the process, as the system prints it: it tells apart processes with the same number."""
    parent: int
    """Process number of the ranks' parent: our supervisor, or torchrun's agent."""
    parent_started: str
    launcher: str
    """``recipe``, ``torchrun``, ``srun``, or empty: a single process, or an unknown launcher."""
    job_id: str
    """Slurm job id; empty: none."""
    world_size: int
    began: float
    """Seconds since the epoch, as ``ended``."""
    ended: float | None = None
    """Time of the error that ended it; None: it trains, has written results.json, or was killed."""
    exit_code: int | None = None
    """Exit code of that error."""
    reason: str = ""

    def is_here(self) -> bool:
        """True if it is a process of this machine, which may have rebooted since."""
        return self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """True if it runs on this machine now."""
        return self._runs(self.pid, self.started)

    def parent_is_alive(self) -> bool:
        """True if the ranks' parent runs on this machine now."""
        return self._runs(self.parent, self.parent_started)

    def _runs(self, pid: int, since: str) -> bool:
        return self.is_here() and self.boot == _boot() and bool(since) and started(pid) == since


@contextmanager
def noted(out: Path) -> Iterator[None]:
    """Record this process in the run folder, and the error or second signal that ends the block, if any.

    Without an error, results.json holds the outcome. The caller holds the lock of the folder. A full disk is ignored.
    """
    me = this_process()
    _write(out, me)

    def record(reason: str, code: int) -> None:
        _write(out, replace(me, ended=time.time(), exit_code=code, reason=reason))

    try:
        with recorded_by(record):
            yield
    except BaseException as error:
        record(first_line(message_of(error)), exit_code(error))
        raise


def this_process() -> Process:
    """Describe this process."""
    rank = worker()
    return Process(
        host=socket.gethostname(),
        boot=_boot(),
        pid=os.getpid(),
        started=started(os.getpid()),
        parent=os.getppid(),
        parent_started=started(os.getppid()),
        launcher=_launcher(rank),
        job_id=os.environ.get("SLURM_JOB_ID", ""),
        world_size=rank.world_size if rank else 1,
        began=time.time(),
    )


def _launcher(rank: Worker | None) -> str:
    # An engine gives every rank torchrun's variables, so that these alone do not identify torchrun.
    if rank is not None and rank.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in os.environ:
        return "srun" if "SLURM_STEP_ID" in os.environ else ""
    return rank.launcher if rank else ""


def read_process(out: Path) -> Process | None:
    """Return the record in a run folder; None if there is none, or a damaged one."""
    return read_record(out / FILE, Process)


def started(pid: int) -> str:
    """Return the start time of a process of this machine; empty if there is none with this number."""
    try:
        fields = process_counters(pid)
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _ps(pid)
    return "" if fields[0] == "Z" else fields[19]  # field 22 of proc(5): clock ticks after the machine's start


def _ps(pid: int) -> str:
    # For systems without /proc.
    try:
        done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _write(out: Path, process: Process) -> None:
    with suppress(DiskError, OSError):
        (out / FILE).parent.mkdir(exist_ok=True)
        write_text(out / FILE, json.dumps(asdict(process)) + "\n")
