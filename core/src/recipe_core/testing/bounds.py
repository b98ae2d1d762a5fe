"""Measure what reading a file takes: seconds and memory, in a process of its own, which a crash may end.

Bounds on processor time are written in seconds of one idle machine; :func:`allowed` translates them for this machine as
it is now, slower or busy with other work.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.errors import RecipeError

SECONDS = 10
"""Time that reading a file of up to a megabyte may take; see :func:`allowed`."""
SPARE = 200 << 20
"""Bytes of memory that reading may take, beside 1.2 times the file."""
_REFERENCE = 3.6e-3
"""Processor seconds that :func:`_reference_work` takes on the machine whose seconds the bounds are written in."""


def allowed(seconds: float) -> float:
    """Processor seconds of this machine, as it is now, for work that should take less than ``seconds``.

    A reference computation is timed at each call: where it takes twice as long, the bound is twice as large. The bound
    is never smaller than ``seconds``.
    """
    taken = []
    for _ in range(7):
        begin = time.process_time()
        _reference_work()
        taken.append(time.process_time() - begin)
    return seconds * max(1.0, statistics.median(taken) / _REFERENCE)


def _reference_work() -> None:
    """What most Python code does: integers, texts, and a dictionary. Nothing here makes the garbage collector run."""
    counts: dict[str, int] = {}
    for number in range(20_000):
        word = f"{number % 997:x}"
        counts[word] = counts.get(word, 0) + len(word)


@dataclass(frozen=True)
class Reading:
    """The outcome of one reading."""

    outcome: str
    """``read``, ``refused`` (a RecipeError), or how it failed: an exception's name and text, or a signal."""
    message: str
    """Of the RecipeError."""
    seconds: float
    """Of the processor: other programs do not count."""
    memory: int
    """Bytes by which the peak grew."""

    def require_bounded(self, size: int) -> None:
        """Require that it was read or refused, in bounded time and memory, for a file of ``size`` bytes."""
        assert self.outcome in ("read", "refused"), self
        assert self.seconds < allowed(SECONDS * max(1.0, size / 1e6)), self
        assert self.memory < 1.2 * size + SPARE, self


def reading(read: Callable[..., Any], *args: Any, limit: int = 300) -> Reading:
    """Call ``read(*args)`` in a fork; one that hangs is ended after ``limit`` seconds. Linux only."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(limit)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
        os.write(writer, pickle.dumps(_measured(read, args)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as results:
        data = results.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) or not data:
        return Reading(f"ended by signal {status & 127}", "", float(limit), 0)
    outcome: Reading = pickle.loads(data)
    return outcome


def _measured(read: Callable[..., Any], args: tuple[Any, ...]) -> Reading:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before, begin = _peak(), time.process_time()
    message = ""
    try:
        read(*args)
        outcome = "read"
    except RecipeError as error:
        outcome, message = "refused", str(error)
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"[:500]
    return Reading(outcome, message, time.process_time() - begin, _peak() - before)


def _peak() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
