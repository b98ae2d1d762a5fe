"""Counts of the graphs that a process compiled, and of those it found in a cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from typing import Protocol

from recipe_core.engine.machine.environment import INDUCTOR_CACHE, compiled_folder, is_on
from recipe_core.engine.neuron import device as neuron
from recipe_core.engine.neuron import stack

_MARK = "__dynamo_disable"


class Compiler(Protocol):
    """A compiler of graphs, as results and messages describe it."""

    name: str
    always: bool
    """True if it compiles regardless of ``train.compile``."""

    def count(self) -> tuple[int, int]:
        """The numbers of graphs of the program and of compilations, since the process began."""
        ...

    def kept(self) -> str:
        """Where another process finds the compiled graphs, as a part of a sentence."""
        ...


@dataclass(frozen=True)
class Graphs:
    """Graphs of a compiler in this process."""

    found: int
    """Different graphs of the program."""
    compiled: int
    """Compilations that they needed (a graph of ``torch.compile`` makes two: forward and backward)."""

    def __str__(self) -> str:
        return f"{self.found} graph{'' if self.found == 1 else 's'}, {self.compiled} compilations"


class GraphCounter:
    """Counts the graphs of ``compiler`` since the counter was created."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._before = compiler.count()

    def read(self) -> Graphs:
        """The counts so far."""
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
        # Neuron's backend has no counter but the files of its cache.
        return sum(1 for _ in cache(self._device).rglob("*.neff")) if self._device == neuron.NAME else 0

    def kept(self) -> str:
        name = stack.CACHE if self._device == neuron.NAME else INDUCTOR_CACHE
        return f"kept in {cache(self._device)} ({name} names another folder; copy it for other machines)"


def cache(device: str) -> Path:
    """The cache of compiled graphs for ``device``; it can be copied to other machines."""
    if device == neuron.NAME:
        return Path(os.environ.get(stack.CACHE) or compiled_folder())
    return Path(os.environ.get(INDUCTOR_CACHE) or compiled_folder() / "inductor")


def keep_compiled(device: str) -> None:
    """Have ``torch.compile`` keep its graphs for ``device`` where other runs find them."""
    if device != neuron.NAME:
        os.environ.setdefault(INDUCTOR_CACHE, str(cache(device)))


def computes_nothing(environment: Mapping[str, str]) -> bool:
    """True if graphs are only compiled and not run, so that losses are meaningless."""
    return is_on(environment, stack.COMPILE_ONLY) or is_on(environment, stack.EXTRACT_ONLY)


def spare_compiler() -> None:
    """Keep optimizers from importing ``torch._dynamo``, which takes a second and only ``torch.compile`` needs.

    At its first call, each method of an optimizer is wrapped so that dynamo skips it
    (``torch._compile._disable_dynamo``). Setting the wrapper to the method itself has the same result if nothing is
    compiled.
    """
    from torch.optim import Optimizer

    for method in filter(isfunction, vars(Optimizer).values()):
        function = getattr(method, "__wrapped__", None)
        if function is not None and "disable_fn" in method.__code__.co_varnames:
            function.__dict__.setdefault(_MARK, function)
