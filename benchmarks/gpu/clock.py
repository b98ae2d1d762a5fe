"""Times, memory and costs of steps: one clock that every contestant's loop calls after each step.

The first steps are not counted. Then the device is waited for, a number of steps that fills the time runs without any
further wait, and the device is waited for again. After that, two steps are profiled with the device's activity alone,
which slows the host least, for costs and gaps; and one with the host's as well, whose trace is kept.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from kernels import ON_DEVICE, families
from torch.profiler import ProfilerActivity, profile

LARGEST = 3
"""Costs that are named."""


class Enough(Exception):
    """All has been measured."""


class Clock:
    """Measures a loop that calls :meth:`tick` after each step, until it raises :class:`Enough`.

    Args:
        device: type of the device.
        trace: the file that the trace is kept in.
        seconds: how long to time; at least ``least`` steps.
        warm: steps that are not counted.
    """

    def __init__(self, device: str, trace: Path, *, seconds: float, least: int, warm: int) -> None:
        self._device, self._trace, self._seconds, self._least = device, trace, seconds, least
        self._steps, self._begun, self._from = 0, time.perf_counter(), 0.0
        self._warm, self._probed, self._until = warm, warm + max(1, warm // 2), 0
        self._profile: Any = None
        self.result: dict[str, Any] = {}

    def tick(self, *_: object) -> None:
        """A step has been taken.

        Raises:
            Enough: it was the last one.
        """
        self._steps += 1
        if self._steps == 1:
            self._wait()
            self.result["first_step_seconds"] = round(time.perf_counter() - self._begun, 2)
            if self._device == "cuda":  # what the making of the model took is not a step's
                torch.cuda.reset_peak_memory_stats()
        if self._steps == self._warm:
            self._from = self._now()
        elif self._steps == self._probed:
            each = (self._now() - self._from) / (self._probed - self._warm)
            self._until = self._steps + max(self._least, min(200, int(self._seconds / each)))
            self._from = self._now()
        elif self._steps == self._until:
            self._conclude()
            self._start(ProfilerActivity.CUDA if self._device == "cuda" else ProfilerActivity.CPU)
        elif self._until and self._steps == self._until + 2:
            self._note_costs(2)
            self._start(*self._activities())
        elif self._until and self._steps == self._until + 3:
            self._stop().export_chrome_trace(str(self._trace))
            self.result["trace"] = self._trace.name
            raise Enough

    def _conclude(self) -> None:
        count = self._until - self._probed
        self.result |= {"steps": count, "seconds_per_step": (self._now() - self._from) / count}
        self.result["peak_memory"] = peak_memory(self._device)

    def _note_costs(self, steps: int) -> None:
        profiled = self._stop()
        if self._device != "cuda":
            self.result["largest_costs"] = host_costs(profiled)
            return
        part = self._trace.with_name(self._trace.name.replace(".json", ".device.json"))
        profiled.export_chrome_trace(str(part))
        events = json.loads(gzip.decompress(part.read_bytes()))["traceEvents"]
        part.unlink()
        costs = device_costs(events)
        costs["families"] = {name: seconds / steps for name, seconds in families(events).items()}
        busy = costs.pop("busy_seconds") / steps
        self.result |= costs
        self.result["device_busy_seconds_per_step"] = busy
        self.result["idle_share"] = round(max(0.0, 1 - busy / self.result["seconds_per_step"]), 4)

    def _activities(self) -> list[ProfilerActivity]:
        return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device == "cuda" else [])]

    def _start(self, *activities: ProfilerActivity) -> None:
        self._profile = profile(activities=activities)
        self._profile.__enter__()

    def _stop(self) -> Any:
        self._wait()
        self._profile.__exit__(None, None, None)
        return self._profile

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _now(self) -> float:
        self._wait()
        return time.perf_counter()


def peak_memory(device: str) -> int | None:
    """Most bytes that were in use: of a GPU, PyTorch's own count; on a CPU, of the whole process."""
    from recipe_core.engine.memory import peak_resident

    return torch.cuda.max_memory_allocated() if device == "cuda" else peak_resident()


def device_costs(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Busy seconds of the device, the idle share between its first and its last work, and the largest costs.

    ``events`` are those of a Chrome trace, whose times are microseconds; kernels of several streams may overlap.
    """
    work = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") in ON_DEVICE)
    if not work:
        return {"busy_seconds": 0.0, "idle_share_profiled": None, "largest_costs": []}
    totals: Counter[str] = Counter()
    busy, end = 0.0, work[0][0]
    for start, stop, name in work:
        totals[name] += stop - start
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return {
        "busy_seconds": busy / 1e6,
        "idle_share_profiled": round(1 - busy / (end - work[0][0]), 4),
        "largest_costs": _largest(totals),
    }


def host_costs(profiled: Any) -> list[dict[str, Any]]:
    """The largest costs of a profile without a device, by the operators' own time."""
    return _largest(Counter({row.key: row.self_cpu_time_total for row in profiled.key_averages()}))


def _largest(totals: Counter[str]) -> list[dict[str, Any]]:
    whole = sum(totals.values())
    return [{"name": name[:120], "share": round(time / whole, 4)} for name, time in totals.most_common(LARGEST)]
