"""Checkpoint retention: keep the newest, the best, and the last one before the loss rose."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from recipe_core.checkpoint.manifest import NAME, Manifest, is_ours, step_of
from recipe_core.errors import CheckpointError
from recipe_core.files import aside, remove

WINDOW = 20
"""Largest number of logged losses whose mean is the level."""
ENOUGH = 5
"""Smallest number of logged losses that make a level."""
FACTOR = 10.0
"""While there are too few losses for a level: a loss that is this many times as high as all before has risen."""
DEVIATIONS = 3.0
"""A loss that is this many standard deviations above the lowest level, or not finite, has risen."""

NOT_OURS = f"no {NAME} in it lists all that it holds, so that it is not this run's to delete"


class Trend:
    """Tracks the logged losses of a run, and the steps at which the loss was far above its lowest level.

    The level is the mean of the last ``WINDOW`` losses. Each loss is compared with the lowest level of the whole run. A
    loss that has risen does not count towards a level, so a high loss never becomes normal. The logged step before a
    rise is doubtful: its loss was computed with the weights before its update.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._lowest: tuple[float, float] | None = None
        self._risen: set[int] = set()
        self._doubtful: set[int] = set()
        self._unsettled: dict[int, None] = {}  # steps since the last rise, or between two, in order
        self._calm = ENOUGH  # number of consecutive losses that have not risen
        self._before: int | None = None  # the last logged step

    def add(self, step: int, loss: float | None) -> None:
        """Record the loss of ``step``; None means that it is not finite."""
        limit = self._first_limit() if self._lowest is None else self._lowest[0] + DEVIATIONS * self._lowest[1]
        if loss is None or not math.isfinite(loss) or loss > limit:
            self._risen.add(step)
            self._calm = 0
            if self._before is not None:
                self._doubtful.add(self._before)
            return
        self._before = step
        self._count_recovery(step)
        self._recent.append(loss)
        if len(self._recent) >= ENOUGH:
            mean = math.fsum(self._recent) / len(self._recent)
            if self._lowest is None or mean < self._lowest[0]:
                squares = math.fsum((loss - mean) ** 2 for loss in self._recent)
                self._lowest = mean, math.sqrt(squares / (len(self._recent) - 1))

    def _count_recovery(self, step: int) -> None:
        # A diverged model may have a low loss by chance; it has recovered after several of them.
        self._calm += 1
        if self._calm < ENOUGH:
            self._unsettled[step] = None
        elif self._calm == ENOUGH:
            for earlier in list(self._unsettled)[1 - ENOUGH :]:
                del self._unsettled[earlier]

    def _first_limit(self) -> float:
        scale = max(map(abs, self._recent), default=0.0)
        return max(self._recent) + (FACTOR - 1) * scale if scale else math.inf

    def newest_certain(self, steps: Iterable[int]) -> int | None:
        """Return the highest of ``steps`` outside a rise: not risen, not just before one, nor in a short recovery."""
        uncertain = self._risen | self._doubtful | self._unsettled.keys()
        return max((step for step in steps if step not in uncertain), default=None)

    def newest_good(self, steps: Iterable[int]) -> int | None:
        """Return the highest of ``steps`` at which the loss had not risen; None if there is none.

        It is certain if possible, else in a short recovery, else doubtful.
        """
        low = [step for step in steps if step not in self._risen]
        if (certain := self.newest_certain(low)) is not None:
            return certain
        return max([step for step in low if step not in self._doubtful] or low, default=None)


class Retention:
    """Removes checkpoints of a run beyond ``keep``; called only on rank 0.

    Args:
        folder: the folder of the checkpoints.
        keep: number of newest checkpoints to keep; 0 keeps all.
        keep_best: also keep the one with the lowest validation loss.
        trend: the run's losses; the newest checkpoint at which the loss had not risen is kept too.
        warn: takes a message for the user.
    """

    def __init__(self, folder: Path, keep: int, *, keep_best: bool, trend: Trend, warn: Callable[[str], None]) -> None:
        self._folder, self._keep, self._keep_best, self._warn = folder, keep, keep_best, warn
        self.trend = trend
        self._spared = ""  # kept beyond ``keep``, since the loss has risen
        self._left_alone: set[str] = set()

    def prune(self, names: Iterable[str], saved: int, damaged: Collection[str]) -> list[str]:
        """Remove checkpoints of ``names`` (newest first) beyond ``keep``, damaged ones first; return their names.

        The last good checkpoint is kept while the loss is high. Steps above ``saved``, the step just saved, are damaged
        or left from an earlier continuation: they do not count, so they cannot displace the checkpoint that was just
        written. Folders with files that no manifest lists are kept.
        """
        removed: list[str] = []
        if not self._keep:
            return removed
        older = [name for name in names if step_of(name) <= saved]
        whole = [name for name in older if name not in damaged]
        best = {self._best(whole)} if self._keep_best else set()
        good = self.last_good(whole)
        for name in set(good) - set(whole[: self._keep]):
            self._announce_spared(name)
        for name in set(older) - set(whole[: self._keep]) - best - set(good) - self._left_alone:
            if not is_ours(self._folder / name):
                self._left_alone.add(name)
                self._warn(f"{self._folder / name}: stays, though train.keep={self._keep}: {NOT_OURS}")
                continue
            hidden = aside(self._folder / name)
            (self._folder / name).replace(hidden)  # so that it is never visible half removed
            remove(hidden)
            removed.append(name)
        return removed

    def last_good(self, names: Iterable[str]) -> list[str]:
        """Return the newest of these checkpoints at which the loss had not risen: one name or none."""
        step = self.trend.newest_good(map(step_of, names))
        return [] if step is None else [f"step-{step}"]

    def _announce_spared(self, name: str) -> None:
        if name != self._spared:
            self._spared = name
            self._warn(f"the loss has risen far above its level since {name}; {self._folder / name} stays")

    def _best(self, names: list[str]) -> str | None:
        losses = {}
        for name in names:
            try:
                losses[name] = Manifest.read(self._folder / name).val_loss
            except CheckpointError:
                continue
        known = {name: loss for name, loss in losses.items() if loss is not None}
        return min(known, key=known.__getitem__, default=None)


def recovery_advice(folder: Path, names: Sequence[str], trend: Trend, failed: int) -> str:
    """Return advice for a run that diverged at step ``failed`` and has the checkpoints ``names``, newest first."""
    trend.add(failed, None)
    change = "Lower train.lr, lengthen train.warmup_steps or set train.clip, and"
    if not names:
        return f"there is no earlier checkpoint. {change} begin anew with the same --out"
    good = trend.newest_certain(map(step_of, names))
    if good is None:
        return (
            f"{folder / names[0]} was made as the loss rose, and may be of no use. {change} begin anew with another "
            "--out; or if it is the data, go on with the same --out and train.on_divergence=skip"
        )
    again = "" if names[0] == f"step-{good}" else f" and train.resume=step-{good}"
    return f"the last good checkpoint is {folder}/step-{good}. {change} go on from it with the same --out{again}"
