"""Measure time and memory of reading a file, in a process of its own, which may crash.

Bounds on processor time are seconds of one idle reference machine; :func:`allowed` scales them to this machine and its
current load.
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
"""Bytes of memory that reading may take in addition to 1.2 times the file."""
_REFERENCE = 3.6e-3
"""Processor seconds of :func:`_reference_work` on the reference machine."""


def allowed(seconds: float) -> float:
    """Return the bound in processor seconds of this machine for work that should take less than ``seconds``.

    A reference computation is timed at each call: if it takes twice as long, the bound is twice as large. The bound is
    never smaller than ``seconds``.
    """
    times = []
    for _ in range(7):
        begin = time.process_time()
        _reference_work()
        times.append(time.process_time() - begin)
    return seconds * max(1.0, statistics.median(times) / _REFERENCE)


def _reference_work() -> None:
    """Typical Python work: integers, strings, a dictionary; the garbage collector does not run."""
    counts: dict[str, int] = {}
    for number in range(20_000):
        key = f"{number % 997:x}"
        counts[key] = counts.get(key, 0) + len(key)


@dataclass(frozen=True)
class MeasuredRead:
    """Outcome, time and memory of reading a file."""

    outcome: str
    """``read``, ``refused`` (a RecipeError), or the failure: an exception's name and text, or a signal."""
    message: str
    """Message of the RecipeError."""
    seconds: float
    """Processor time, so that other programs do not count."""
    memory: int
    """Growth of the peak memory, in bytes."""

    def require_bounded(self, size: int) -> None:
        """Assert that a file of ``size`` bytes was read or refused in bounded time and memory."""
        assert self.outcome in ("read", "refused"), self
        assert self.seconds < allowed(SECONDS * max(1.0, size / 1e6)), self
        assert self.memory < 1.2 * size + SPARE, self


def reading(read: Callable[..., Any], *args: Any, limit: int = 300) -> MeasuredRead:
    """Call ``read(*args)`` in a fork, which is ended after ``limit`` seconds. Linux only."""
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
        return MeasuredRead(f"ended by signal {status & 127}", "", float(limit), 0)
    outcome: MeasuredRead = pickle.loads(data)
    return outcome


def _measured(read: Callable[..., Any], args: tuple[Any, ...]) -> MeasuredRead:
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, begin = _peak(), time.process_time()
    message = ""
    try:
        read(*args)
        outcome = "read"
    except RecipeError as error:
        outcome, message = "refused", str(error)
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"[:500]
    return MeasuredRead(outcome, message, time.process_time() - begin, _peak() - before)


def _peak() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
