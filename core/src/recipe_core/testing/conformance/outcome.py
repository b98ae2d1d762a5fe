"""Outcomes of checks, and how a check says that it failed or has nothing to look at."""

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
"""Lines of a failed command's output that a reason shows."""


class FailedCheck(Exception):
    """A contribution is not as it says; the text names what was expected, what was found, and the way out."""


class SkippedCheck(Exception):
    """A contribution has nothing for this check; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """One check of one contribution."""

    subject: str
    """``model gpt``"""
    check: str
    state: State
    text: str
    """Passed: what was covered; failed: the reason and the way out; skipped: the reason."""
    seconds: float


def outcome(subject: str, check: str, function: Callable[[], str]) -> Outcome:
    """Call ``function``, which returns what it covered; any exception but an interrupt is a failure with its text."""
    start = time.perf_counter()
    state: State = "passed"
    try:
        text = function()
    except SkippedCheck as skipped:
        state, text = "skipped", str(skipped)
    except (FailedCheck, RecipeError) as failure:
        state, text = "failed", str(failure)
    except AssertionError as failure:  # of run_tiny and spawn: the output of a command, or a traceback
        state, text = "failed", "\n".join(str(failure).strip().splitlines()[-_LINES:]) or _place(failure)
    except Exception as error:  # any code of the plugin may run here
        state, text = "failed", f"{type(error).__name__}: {error} ({_place(error)})"
    return Outcome(subject, check, state, text, time.perf_counter() - start)


def _place(error: BaseException) -> str:
    """File, line and function in which ``error`` was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}, in {last.name}"
