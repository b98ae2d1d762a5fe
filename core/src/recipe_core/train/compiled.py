"""How many graphs a process had compiled, and how many of them were there already."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from recipe_core.engine import neuron
from recipe_core.engine.environment import compiled_folder


@dataclass(frozen=True)
class Graphs:
    """Graphs of ``torch.compile``, or of PyTorch/XLA, in this process."""

    found: int
    """Different graphs that the program has."""
    compiled: int
    """What had to be compiled for them (a graph of ``torch.compile`` makes two: forward and backward)."""

    def __str__(self) -> str:
        return f"{self.found} graph{'' if self.found == 1 else 's'}, {self.compiled} compilations"


class GraphCounter:
    """Counts from its making on; ``device`` is the device type that graphs are compiled for."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._before = self._count()

    def read(self) -> Graphs:
        """What was compiled since."""
        found, compiled = (now - before for now, before in zip(self._count(), self._before, strict=True))
        return Graphs(found, compiled)

    def _count(self) -> tuple[int, int]:
        if self._device == "xla":
            from torch_xla.debug import metrics

            return metrics.counter_value("UncachedCompile") or 0, (metrics.metric_data("CompileTime") or (0,))[0]
        if "torch._dynamo" not in sys.modules:  # nothing was compiled, and importing it takes seconds
            return 0, self._neffs()
        from torch._dynamo.utils import counters

        misses = counters["inductor"]["fxgraph_cache_miss"]
        return counters["stats"]["unique_graphs"], self._neffs() if self._device == neuron.NAME else misses

    def _neffs(self) -> int:
        """Compiled programs of Neuron in the cache; the backend counts in files."""
        return sum(1 for _ in cache(self._device).rglob("*.neff")) if self._device == neuron.NAME else 0


def cache(device: str) -> Path:
    """The folder that compiled graphs for ``device`` are kept in, and that can be copied to other machines."""
    if device == neuron.NAME:
        return Path(os.environ.get("TORCH_NEURONX_NEFF_CACHE_DIR") or compiled_folder())
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or compiled_folder() / "inductor")
