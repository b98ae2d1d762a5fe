"""Outcomes of checks, and the exceptions by which a check fails or is skipped."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipe_core.errors import RecipeError

State = Literal["passed", "failed", "skipped"]
_LINES = 12
"""Lines of a failed command's output in the outcome."""
_TRACEBACK = "Traceback (most recent call last):"


class FailedCheck(Exception):
    """A contribution does not do what it declares; the text says what was expected, what was found, and the remedy."""


class SkippedCheck(Exception):
    """The check does not apply to the contribution; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check of one contribution."""

    subject: str
    """Noun and name: ``model gpt``."""
    check: str
    state: State
    text: str
    """Passed: a note on the coverage; failed: the reason and the remedy; skipped: the reason."""
    seconds: float


def outcome(subject: str, check: str, function: Callable[[], str]) -> Outcome:
    """Call ``function``, which returns a note on its coverage; any exception but an interrupt is a failure."""
    start = time.perf_counter()
    state: State = "passed"
    try:
        text = function()
    except SkippedCheck as skipped:
        state, text = "skipped", str(skipped)
    except (FailedCheck, RecipeError) as failure:
        state, text = "failed", str(failure)
    except AssertionError as failure:  # from run_tiny and spawn: the output of a command, or a traceback
        state, text = "failed", _end(str(failure)) or location(failure)
    except Exception as error:  # any code of the plugin may run here
        state, text = "failed", f"{type(error).__name__}: {error} ({location(error)})"
    return Outcome(subject, check, state, text, time.perf_counter() - start)


def _end(output: str) -> str:
    """The last lines of a command's output; for a traceback from another process, its error."""
    lines = output.strip().splitlines()
    if _TRACEBACK in output:
        code = [number for number, line in enumerate(lines) if line.startswith("  ") or _TRACEBACK in line]
        lines = lines[max(code) + 1 :] or lines
    return "\n".join(lines[-_LINES:]).rpartition(f".{FailedCheck.__name__}: ")[2]


def root(error: BaseException) -> BaseException:
    """Return the first exception in the chain of causes of ``error``."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def location(error: BaseException) -> str:
    """Return file, line and function in which ``error`` was raised."""
    if error.__traceback__ is None:
        return "no line is known"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}, in {last.name}"
