"""The training loss over a run: at which steps it stood far above the lowest level that it had reached."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

WINDOW = 20
"""Logged losses, at most, whose mean is a level."""
ENOUGH = 5
"""Logged losses, at least, that make a level."""
DEVIATIONS = 3.0
"""A loss that is so many standard deviations above the lowest level, or not finite, has risen."""


class Trend:
    """Follows the logged losses of a run, one at a time.

    The level is the mean of the last ``WINDOW`` losses. A loss that has risen is compared with the lowest level of the
    whole run and is no part of any level: however long it stays up there, that does not become normal. The logged step
    before a rise is doubtful: its loss is that of the weights before its update.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._lowest: tuple[float, float] | None = None
        self._risen: set[int] = set()
        self._doubtful: set[int] = set()
        self._before: int | None = None  # the step that was logged last

    def add(self, step: int, loss: float | None) -> None:
        """Note the loss of ``step``; None stands for one that is not finite."""
        limit = math.inf if self._lowest is None else self._lowest[0] + DEVIATIONS * self._lowest[1]
        if loss is None or not math.isfinite(loss) or loss > limit:
            self._risen.add(step)
            if self._before is not None:
                self._doubtful.add(self._before)
            return
        self._before = step
        self._recent.append(loss)
        if len(self._recent) >= ENOUGH:
            level = statistics.fmean(self._recent), statistics.stdev(self._recent)
            self._lowest = level if self._lowest is None else min(self._lowest, level)

    def newest_sound(self, steps: Iterable[int]) -> int | None:
        """The highest of ``steps`` at which the loss had not risen, a doubtful one only where there is no other; None
        where there is none."""
        low = [step for step in steps if step not in self._risen]
        return max([step for step in low if step not in self._doubtful] or low, default=None)
