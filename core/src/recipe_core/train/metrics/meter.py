"""The meter: the loss of each step, counts over its samples, and the speed of the last steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recipe_core.engine.protocol import Engine
from recipe_core.layouts.parallel import COUNTED, Reductions, Run, without_counts
from recipe_core.train.metrics.curves import Row

WINDOW = 10
"""Steps, at least, that a speed is measured over."""


def reduce_over_ranks(
    engine: Engine, run: Run, values: Mapping[str, Tensor], reductions: Reductions
) -> dict[str, float]:
    """All values reduced over the data-parallel ranks, together; the host waits for it. All ranks call it."""
    return _reduced(engine, run, values, engine.read(engine.stacked(list(values.values()))), reductions)


def _reduced(
    engine: Engine, run: Run, names: Iterable[str], stacked: Tensor, reductions: Reductions
) -> dict[str, float]:
    group, names = run.mesh["dp"].get_group() if run.mesh is not None else None, list(names)
    found = dict(zip(names, engine.mean(stacked, group).tolist(), strict=True))
    largest = [place for place, name in enumerate(names) if reductions.get(name) == "max"]
    if largest:
        ranks = engine.gather(stacked[largest].tolist())
        found |= {names[place]: max(column) for place, column in zip(largest, zip(*ranks, strict=True), strict=True)}
    added = [name for name in names if reductions.get(name) in ("sum", "count")]
    return found | {name: found[name] * run.dp_size for name in added}


@dataclass
class Window:
    """Consecutive steps: their number, their time, and their counts over all ranks."""

    steps: int = 0
    seconds: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """Metrics of the steps since the last reading."""

    row: Row
    """Values of the last step and speeds, for metrics.jsonl."""
    losses: list[float]
    """The loss of every step since the last reading, where the meter keeps them."""


class Meter:
    """Gathers what each step leaves on the device; only :meth:`read` makes the host wait for it.

    Args:
        engine: the device and the other ranks.
        run: its mesh, precision and batch sizes.
        tokens_per_sample: length of a sample with its padding; 0 where it is not known.
        flops_per_sample: floating-point operations of one sample, where they are known.
        reductions: how what the loss returns is reduced.
        every_loss: keep the loss of every step until it is read.
    """

    def __init__(
        self, engine: Engine, run: Run, tokens_per_sample: int = 0, flops_per_sample: float | None = None,
        *, reductions: Reductions = COUNTED, every_loss: bool = False,
    ) -> None:  # fmt: skip
        self._engine, self._run = engine, run
        self._tokens_per_sample, self._flops_per_sample = tokens_per_sample, flops_per_sample
        self._reductions = reductions
        self._losses: list[Tensor] | None = [] if every_loss else None
        self._counts: dict[str, list[Tensor]] = {}  # one a step, since the last reading
        self._now = Window()
        self._recent: deque[Window] = deque()
        self._values: dict[str, Tensor] = {}
        self._norm = torch.tensor(torch.nan)
        self._lr = 0.0

    def step(self, values: dict[str, Tensor], norm: Tensor, lr: float, seconds: float) -> None:
        """Note a step: what ``Parallel.backward`` returned, gradient norm, learning rate, time on the host."""
        self._values, self._norm, self._lr = without_counts(values, self._reductions), norm, lr
        for name in values.keys() - self._values.keys():
            self._counts.setdefault(name, []).append(values[name].long())
        self._now.steps += 1
        self._now.seconds += seconds
        if self._losses is not None:
            self._losses.append(values["loss"])

    def read(self) -> Reading:
        """Wait for the device and return the metrics of the steps since the last reading; all ranks call it."""
        start = time.perf_counter()
        losses = {f"loss {i}": loss for i, loss in enumerate(self._losses or ())}
        names = sorted(self._counts)  # in the same order on all ranks
        counts = {name: self._engine.total(self._counts[name]) for name in names}
        values = {**self._values, **counts, **losses}
        # One transfer for all. The norm is the same on all ranks, and so stays out of the mean.
        norms = self._norm.to(next(iter(values.values())).device)
        stacked = self._engine.read(self._engine.stacked([*values.values(), norms]))
        found = _reduced(self._engine, self._run, values, stacked[:-1], self._reductions)
        norm = float(stacked[-1])
        self._engine.synchronize()
        now, self._now = self._now, Window()
        now.seconds += time.perf_counter() - start
        now.counts = {name: found[name] for name in counts}
        self._counts = {}
        if self._losses is not None:
            self._losses = []
        row = {name: found[name] for name in self._values}
        row |= {"lr": self._lr, "grad_norm": norm, "seconds": now.seconds / now.steps}
        return Reading(row | self._speeds(now), [found[name] for name in losses])

    def _speeds(self, now: Window) -> Row:
        """Speeds over the last windows that make up WINDOW steps; ``now`` is the newest."""
        self._recent.append(now)
        while sum(window.steps for window in self._recent) - self._recent[0].steps >= WINDOW:
            self._recent.popleft()
        seconds = sum(window.seconds for window in self._recent)
        samples = sum(window.steps for window in self._recent) * self._run.train.global_batch / seconds
        counted = {name: sum(w.counts.get(name, 0.0) for w in self._recent) / seconds for name in sorted(now.counts)}
        counted.setdefault("sequences", samples)
        row: Row = {"samples_per_second": samples, "sequences_per_second": counted.pop("sequences")}
        row |= {f"{name}_per_second": speed for name, speed in counted.items()}
        if self._tokens_per_sample:
            row["tokens_per_second"] = samples * self._tokens_per_sample
        if self._flops_per_sample:
            each = row["flops_per_second"] = samples * self._flops_per_sample / self._run.world_size
            if peak := self._engine.peak_flops(self._run.train.precision):
                row["mfu"] = each / peak
        if memory := self._engine.peak_memory():
            row["peak_memory"] = memory
        return row | self._engine.counters()
