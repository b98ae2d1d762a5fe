"""How many graphs a process had compiled, and how many of them were there already."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from typing import Protocol

from recipe_core.engine import neuron
from recipe_core.engine.environment import compiled_folder, is_on

_MARK = "__dynamo_disable"


class Compiler(Protocol):
    """A compiler of graphs, as far as results and messages tell of it."""

    name: str
    always: bool
    """It compiles whatever ``train.compile`` says."""

    def count(self) -> tuple[int, int]:
        """Graphs that the program has, and what was compiled for them, since the process began."""
        ...

    def kept(self) -> str:
        """Where another process finds what was compiled, as a part of a sentence."""
        ...


@dataclass(frozen=True)
class Graphs:
    """Graphs of a compiler in this process."""

    found: int
    """Different graphs that the program has."""
    compiled: int
    """Compilations that they needed (a graph of ``torch.compile`` makes two: forward and backward)."""

    def __str__(self) -> str:
        return f"{self.found} graph{'' if self.found == 1 else 's'}, {self.compiled} compilations"


class GraphCounter:
    """Counts the graphs of ``compiler`` from its making on."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._before = compiler.count()

    def read(self) -> Graphs:
        """Graphs since then."""
        found, compiled = (now - before for now, before in zip(self._compiler.count(), self._before, strict=True))
        return Graphs(found, compiled)


class TorchCompile:
    """``torch.compile`` for ``device`` (a device type); see :class:`Compiler`."""

    name, always = "torch.compile", False

    def __init__(self, device: str) -> None:
        self._device = device

    def count(self) -> tuple[int, int]:
        if "torch._dynamo" not in sys.modules:  # nothing was compiled, and importing it takes seconds
            return 0, self._neffs()
        from torch._dynamo.utils import counters

        misses = counters["inductor"]["fxgraph_cache_miss"]
        return counters["stats"]["unique_graphs"], self._neffs() if self._device == neuron.NAME else misses

    def _neffs(self) -> int:
        """Compiled programs of Neuron in the cache; the backend counts in files."""
        return sum(1 for _ in cache(self._device).rglob("*.neff")) if self._device == neuron.NAME else 0

    def kept(self) -> str:
        name = "TORCH_NEURONX_NEFF_CACHE_DIR" if self._device == neuron.NAME else "TORCHINDUCTOR_CACHE_DIR"
        return f"kept in {cache(self._device)} ({name} names another folder; copy it for other machines)"


def cache(device: str) -> Path:
    """The folder that compiled graphs for ``device`` are kept in, and that can be copied to other machines."""
    if device == neuron.NAME:
        return Path(os.environ.get("TORCH_NEURONX_NEFF_CACHE_DIR") or compiled_folder())
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or compiled_folder() / "inductor")


def computes_nothing(environment: Mapping[str, str]) -> bool:
    """True if graphs are only compiled, so that a loss may be any number."""
    return is_on(environment, "TORCH_NEURONX_COMPILE_ONLY") or is_on(environment, "NEURON_EXTRACT_GRAPHS_ONLY")


def spare_compiler() -> None:
    """Have optimizers do without ``torch._dynamo``, whose import takes a second and serves ``torch.compile`` alone.

    Their methods are marked for it to leave alone, at their first call (``torch._compile._disable_dynamo``). Here they
    are marked as themselves, which is what the mark comes to where nothing is compiled.
    """
    from torch.optim import Optimizer

    for method in filter(isfunction, vars(Optimizer).values()):
        function = getattr(method, "__wrapped__", None)
        if function is not None and "disable_fn" in method.__code__.co_varnames:
            function.__dict__.setdefault(_MARK, function)
