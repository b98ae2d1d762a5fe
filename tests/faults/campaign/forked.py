"""The command ``recipe`` in forks of this process, which has imported PyTorch, with their time and memory."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch  # so that forks do not have to import it or the Trainer
from transformers import Trainer as Trainer

from recipe_core.cli import __main__ as cli
from recipe_core.launch import supervisor
from recipe_core.testing import forks
from recipe_core.testing.forked_rank import ForkedRank
from recipe_core.train.metrics.curves import read_rows

WALL = 400
"""Seconds after which a command counts as hung; it takes some seconds on a machine that has nothing else to do."""
HUNG = -999
"""Pseudo exit code of a command that was ended because it hung."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
NAMES = ("step", "loss", "val_loss", "grad_norm", "lr", "consumed_samples")
Curve = list[dict[str, float]]


@dataclass(frozen=True)
class Ended:
    """The end of a command."""

    code: int
    """Negative: the signal that ended it."""
    text: str
    cpu: float = 0.0
    """Processor seconds, including its children."""
    memory: int = 0
    """Bytes by which its peak memory, or that of one of its children, grew."""
    left: str = ""
    """Names of the temporary files that it left."""

    def ill(self, *codes: int) -> str:
        """Return what is wrong with its end, if only ``codes`` are right; empty for nothing."""
        if "Traceback (most recent call last)" in self.text or self.code == 70:
            return f"a traceback (exit code {self.code}): {self.text.strip()[-300:]}"
        if self.code == HUNG:
            return f"it hung: {self.text.strip()[-300:]}"
        if self.code not in codes:
            return f"ended with {self.code}, expected {' or '.join(map(str, codes))}: {self.text.strip()[-300:]}"
        if self.code not in (0, 75, -signal.SIGKILL) and not self.text.strip():
            return f"ended with {self.code} and no message"
        return f"it left temporary files: {self.left}" if self.left else ""


def start(words: list[str], log: Path, environment: Mapping[str, str] = {}, patch: Callable[[], None] = list) -> int:
    """Call ``patch``, start ``recipe WORDS`` with its output in ``log``, and return its process id."""
    temporary(log).mkdir(exist_ok=True)
    log.touch()  # the fork may be killed before it opens it
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # an early one waits until the fork is set up like a command
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return pid
    code = 1
    try:
        os.setsid()
        os.chdir(log.parent)  # `recipe compare` writes a picture to the current folder
        forks.enter({**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary(log)), **environment})
        tempfile.tempdir = None  # it was the parent's
        for number in SIGNALS:  # nohup and a shell's background jobs ignore some
            signal.signal(number, signal.SIG_DFL)
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        with log.open("ab") as file:
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        torch.set_num_threads(1)
        setattr(supervisor, "Popen", ForkedRank)  # noqa: B010 - mypy would reject an assignment
        patch()
        sys.argv = ["recipe", *words]
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before = peak()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a pending signal ends it silently, as during a start
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = cli.main()
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        Path(f"{log}.taken").write_text(json.dumps(max(peak(), children) - before))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def temporary(log: Path) -> Path:
    """Return the temporary folder of the command whose output goes to ``log``."""
    return log.parent / "tmp"


def peak() -> int:
    """Return the peak memory of this process so far, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def wait(pid: int, log: Path, idle: float = WALL) -> Ended:
    """Wait for a command that was started; end it after :data:`WALL` seconds, or when it has used no processor for
    ``idle`` seconds."""
    begin = last = time.monotonic()
    used, hung = -1, 0.0
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        now = time.monotonic()
        if (ticks := _ticks(pid)) != used:
            used, last = ticks, now
        if (now - last > idle or now - begin > WALL) and not hung:
            os.kill(pid, signal.SIGKILL)
            hung = now - begin
        time.sleep(0.01)
    _, status, usage = ended
    taken = Path(f"{log}.taken")
    memory = int(taken.read_text()) if taken.exists() else 0
    taken.unlink(missing_ok=True)
    text = log.read_text(errors="replace")
    code = HUNG if hung else os.waitstatus_to_exitcode(status)
    left = "" if code in (HUNG, -signal.SIGKILL) else ", ".join(sorted(path.name for path in temporary(log).iterdir()))
    shutil.rmtree(temporary(log), ignore_errors=True)
    text += f"\nended after {hung:.0f} s" * bool(hung)
    return Ended(code, text, usage.ru_utime + usage.ru_stime, memory, left)


def _ticks(pid: int) -> int:
    """Return the clock ticks that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def recipe(
    words: list[str],
    folder: Path,
    environment: Mapping[str, str] = {},
    patch: Callable[[], None] = list,
    idle: float = WALL,
) -> Ended:
    """Run ``recipe WORDS`` to its end; its output is kept in ``folder``."""
    log = folder / f"output-{len(list(folder.glob('output-*.txt')))}.txt"
    with log.open("w", encoding="utf-8") as file:
        print("$ recipe", *words, file=file)
    return wait(start(words, log, environment, patch), log, idle)


def adopt() -> None:
    """Become the parent of orphaned descendants, so that :func:`orphans` finds them."""
    pr_set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def orphans(seconds: float = 60) -> str:
    """Wait until no child is left; after ``seconds``, end those that remain and return a message."""
    deadline, said = time.monotonic() + seconds, ""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return said
        if not pid:
            if time.monotonic() > deadline:
                left = [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
                said = f"{len(left)} processes were left {seconds:.0f} s after the end"
                for child in left:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.02)


def curve(out: Path, after: int = 0) -> Curve:
    """Return the values that must be equal, of the steps behind ``after``."""
    rows = read_rows(out / "metrics.jsonl") if (out / "metrics.jsonl").exists() else []
    return [{name: row[name] for name in NAMES if name in row} for row in rows if row["step"] > after]


def copied(source: Path, target: Path) -> Path:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy(source, target)
    return target
