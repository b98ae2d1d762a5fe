"""The checkpoints of a run that stay: the newest, the best, and the last one before the loss rose."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from recipe_core.checkpoint.manifest import NAME, Manifest, is_ours
from recipe_core.errors import CheckpointError
from recipe_core.files import aside, remove

WINDOW = 20
"""Logged losses, at most, whose mean is a level."""
ENOUGH = 5
"""Logged losses, at least, that make a level."""
DEVIATIONS = 3.0
"""A loss that is so many standard deviations above the lowest level, or not finite, has risen."""

NOT_OURS = f"no {NAME} in it lists all that it holds, so that it is not this run's to delete"


class Trend:
    """Tracks the logged losses of a run, and the steps at which the loss stood far above its lowest level.

    The level is the mean of the last ``WINDOW`` losses. A loss that has risen is compared with the lowest level of the
    whole run and is no part of any level: however long it stays up there, that does not become normal. The logged step
    before a rise is doubtful: its loss was computed with the weights before its update.
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


class Retention:
    """Removes the checkpoints of a run that are beyond ``keep``; called on rank 0 alone.

    Args:
        folder: the folder of the checkpoints.
        keep: number of checkpoints that stay, the newest; 0 keeps all.
        keep_best: the one of the lowest validation loss stays too.
        trend: the run's losses; the newest checkpoint at which the loss had not risen stays too.
        warn: takes a message for the user.
    """

    def __init__(self, folder: Path, keep: int, *, keep_best: bool, trend: Trend, warn: Callable[[str], None]) -> None:
        self._folder, self._keep, self._keep_best, self._trend, self._warn = folder, keep, keep_best, trend, warn
        self._spared = ""  # stays although it is beyond ``keep``, since the loss has risen
        self._left_alone: set[str] = set()

    def prune(self, names: Iterable[str], saved: int, damaged: Collection[str]) -> None:
        """Remove those of ``names`` (newest first) that are beyond ``keep``, damaged ones first.

        Checkpoints of a run whose loss has exploded do not push out the last good one.
        Steps above ``saved``, the step just saved, are damaged ones, or of a run that went on from here before: they do
        not count, so that they cannot push out the checkpoint that was just written. Folders with anything in them that
        no manifest of ours lists stay.
        """
        if not self._keep:
            return
        older = [name for name in names if int(name.removeprefix("step-")) <= saved]
        whole = [name for name in older if name not in damaged]
        best = {self._best(whole)} if self._keep_best else set()
        sound = self.sound(whole)
        for name in set(sound) - set(whole[: self._keep]):
            self._announce_spared(name)
        for name in set(older) - set(whole[: self._keep]) - best - set(sound) - self._left_alone:
            if not is_ours(self._folder / name):
                self._left_alone.add(name)
                self._warn(f"{self._folder / name}: stays, though train.keep={self._keep}: {NOT_OURS}")
                continue
            hidden = aside(self._folder / name)
            (self._folder / name).replace(hidden)  # so that it is never seen half removed
            remove(hidden)

    def sound(self, names: Iterable[str]) -> list[str]:
        """The newest of these checkpoints at which the loss had not risen, if there is one."""
        step = self._trend.newest_sound(int(name.removeprefix("step-")) for name in names)
        return [] if step is None else [f"step-{step}"]

    def _announce_spared(self, name: str) -> None:
        if name != self._spared:
            self._spared = name
            self._warn(f"the loss has risen far above its level since {name}; {self._folder / name} stays")

    def _best(self, names: list[str]) -> str | None:
        """The one of the lowest validation loss; None where none was saved at an evaluation."""
        losses = {}
        for name in names:
            try:
                losses[name] = Manifest.read(self._folder / name).val_loss
            except CheckpointError:
                continue
        known = {name: loss for name, loss in losses.items() if loss is not None}
        return min(known, key=known.__getitem__, default=None)
