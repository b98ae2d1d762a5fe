"""Measurement of each step's loss, counts and time, and of the speed of the last steps."""

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
"""Fewest steps over which a speed is measured."""


def reduce_over_ranks(
    engine: Engine, run: Run, values: Mapping[str, Tensor], reductions: Reductions
) -> dict[str, float]:
    """All values, reduced over the data-parallel ranks; a collective that synchronises with the device."""
    return _reduced(engine, run, values, engine.read(engine.stack_on_host(list(values.values()))), reductions)


def _reduced(
    engine: Engine, run: Run, names: Iterable[str], stacked: Tensor, reductions: Reductions
) -> dict[str, float]:
    group, names = run.mesh["dp"].get_group() if run.mesh is not None else None, list(names)
    reduced = dict(zip(names, engine.mean(stacked, group).tolist(), strict=True))
    largest = [place for place, name in enumerate(names) if reductions.get(name) == "max"]
    if largest:
        ranks = engine.gather(stacked[largest].tolist())
        reduced |= {names[place]: max(column) for place, column in zip(largest, zip(*ranks, strict=True), strict=True)}
    added = [name for name in names if reductions.get(name) in ("sum", "count")]
    return reduced | {name: reduced[name] * run.dp_size for name in added}


@dataclass
class StepWindow:
    """Consecutive steps: number, samples, duration, and counts over all ranks."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MeterReading:
    """Metrics of the steps since the last reading."""

    row: Row
    """Values of the last step, and speeds, for metrics.jsonl."""
    losses: list[float]
    """The loss of every step since the last reading; empty unless the meter keeps them."""


class Meter:
    """Collects each step's values on the device; only :meth:`read` synchronises.

    Args:
        engine: the device and the other ranks.
        run: its mesh, precision and batch sizes.
        tokens_per_sample: length of a sample with its padding; 0 if it is not known.
        flops_per_sample: floating-point operations of one sample, if they are known.
        reductions: reduction of each value that the loss returns.
        every_loss: keep the loss of every step until :meth:`read`.
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
        self._current = StepWindow()
        self._windows: deque[StepWindow] = deque()
        self._values: dict[str, Tensor] = {}
        self._norm = torch.tensor(torch.nan)
        self._lr = 0.0

    def step(self, values: dict[str, Tensor], norm: Tensor, lr: float, seconds: float, samples: int) -> None:
        """Record a step: result of ``Parallel.backward``, gradient norm, learning rate, seconds on the host, samples
        over all ranks."""
        self._values, self._norm, self._lr = without_counts(values, self._reductions), norm, lr
        for name in values.keys() - self._values.keys():
            self._counts.setdefault(name, []).append(values[name].long())
        self._current.steps += 1
        self._current.samples += samples
        self._current.seconds += seconds
        if self._losses is not None:
            self._losses.append(values["loss"])

    def read(self) -> MeterReading:
        """The metrics of the steps since the last reading; a collective that synchronises with the device."""
        start = time.perf_counter()
        losses = {f"loss {i}": loss for i, loss in enumerate(self._losses or ())}
        names = sorted(self._counts)  # in the same order on all ranks
        counts = {name: self._engine.sum_counts(self._counts[name]) for name in names}
        values = {**self._values, **counts, **losses}
        # One transfer for all. The norm is the same on all ranks and needs no mean.
        norms = self._norm.to(next(iter(values.values())).device)
        stacked = self._engine.read(self._engine.stack_on_host([*values.values(), norms]))
        reduced = _reduced(self._engine, self._run, values, stacked[:-1], self._reductions)
        norm = float(stacked[-1])
        self._engine.synchronize()
        now, self._current = self._current, StepWindow()
        now.seconds += time.perf_counter() - start
        now.counts = {name: reduced[name] for name in counts}
        self._counts = {}
        if self._losses is not None:
            self._losses = []
        row = {name: reduced[name] for name in self._values}
        row |= {"lr": self._lr, "grad_norm": norm, "seconds": now.seconds / now.steps}
        return MeterReading(row | self._speeds(now), [reduced[name] for name in losses])

    def _speeds(self, now: StepWindow) -> Row:
        # over the last windows with at least WINDOW steps in all
        self._windows.append(now)
        while sum(window.steps for window in self._windows) - self._windows[0].steps >= WINDOW:
            self._windows.popleft()
        seconds = sum(window.seconds for window in self._windows)
        samples = sum(window.samples for window in self._windows) / seconds
        counted = {name: sum(w.counts.get(name, 0.0) for w in self._windows) / seconds for name in sorted(now.counts)}
        counted.setdefault("sequences", samples)
        row: Row = {"samples_per_second": samples, "sequences_per_second": counted.pop("sequences")}
        row |= {f"{name}_per_second": speed for name, speed in counted.items()}
        if self._tokens_per_sample:
            row["tokens_per_second"] = samples * self._tokens_per_sample
        if self._flops_per_sample:
            per_process = row["flops_per_second"] = samples * self._flops_per_sample / self._run.world_size
            if peak := self._engine.peak_flops(self._run.train.precision):
                row["mfu"] = per_process / peak
        if memory := self._engine.peak_memory():
            row["peak_memory"] = memory
        return row | self._engine.counters()
