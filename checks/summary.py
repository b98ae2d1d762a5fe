"""One block at the end of nox: the minutes of each session, and everything that failed."""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

LAST = 15
"""Lines of a failed session's output that are repeated at the end."""
_LOGS = tempfile.TemporaryDirectory(prefix="recipe-logs-")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class _Session:
    """The record of one session."""

    name: str
    minutes: float = 0.0
    end: str = "interrupted"
    failed: list[str] = field(default_factory=list)
    """Lines about tests that failed."""
    flaky: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)


_SESSIONS: dict[str, _Session] = {}


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """Time session ``name``, and keep what is printed meanwhile, by whatever process."""
    session = _SESSIONS[name] = _Session(name)
    log = Path(_LOGS.name) / f"{len(_SESSIONS)}.log"
    if not _SESSIONS.keys() - {name}:
        atexit.register(_print)
    if sys.stdout.isatty():  # from here on, the output of commands goes through a pipe
        os.environ.setdefault("FORCE_COLOR", "1")
    begun = time.monotonic()
    try:
        with _copied(log):
            yield
        session.end = "passed"
    except BaseException as error:
        session.end = "skipped" if type(error).__name__ == "_SessionSkip" else "FAILED"
        raise
    finally:
        session.minutes = (time.monotonic() - begun) / 60
        text = _COLOURS.sub("", log.read_text("utf-8", errors="replace")) if log.exists() else ""
        session.last = [line.rpartition("\r")[2] for line in text.rstrip().splitlines()[-LAST:]]


@contextmanager
def _copied(log: Path) -> Iterator[None]:
    """Copy what this process and its children print to ``log``."""
    sys.stdout.flush()
    sys.stderr.flush()
    # In a session of its own, Ctrl-C does not end it before the commands whose last words it passes on.
    tee = subprocess.Popen(["tee", str(log)], stdin=subprocess.PIPE, start_new_session=True)
    assert tee.stdin
    before = [os.dup(1), os.dup(2)]
    for number in (1, 2):
        os.dup2(tee.stdin.fileno(), number)
    tee.stdin.close()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, earlier in zip((1, 2), before, strict=True):
            os.dup2(earlier, number)
            os.close(earlier)
        tee.wait()


def failed(session: str, name: str, reason: str) -> None:
    """Note a test that failed, and did so twice where it was run twice."""
    _SESSIONS[session].failed.append(f"{name} - {reason}")


def flaky(session: str, name: str, load: float, processor: str, traceback: str) -> None:
    """Note a test that failed and then passed alone."""
    _SESSIONS[session].flaky.append(f"FLAKY {name} (load {load:.1f}, {processor})\n{_indented(traceback)}")


def _indented(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.splitlines())


def _print() -> None:
    """Print the block."""
    sessions = list(_SESSIONS.values())
    wrong = [session for session in sessions if session.end not in ("passed", "skipped")]
    if len(sessions) == 1 and not wrong and not sessions[0].flaky:
        return
    total = sum(session.minutes for session in sessions)
    width = max(len(session.name) for session in sessions)
    print(f"\n{'=' * 30} {len(sessions)} sessions, {total:.1f} min {'=' * 30}")
    for session in sessions:
        tests = f": {len(session.failed)} failed" * bool(session.failed)
        print(f"{session.name:{width}} {session.minutes:6.1f} min  {session.end}{tests}")
    for session in wrong:
        print(f"\n{session.name} {session.end}")
        for line in session.failed:
            print(f"  FAILED {line}")
        print(_indented("\n".join(session.last)))
    for line in (line for session in sessions for line in session.flaky):
        print(f"\n{line}")
    # A session whose environment could not be made has no record, so this never says that all have passed.
    names = ", ".join(session.name for session in wrong)
    passed = sum(session.end == "passed" for session in sessions)
    print(f"\n{len(wrong)} of {len(sessions)} sessions failed: {names}" if wrong else f"\n{passed} sessions passed")
    sys.stdout.flush()
