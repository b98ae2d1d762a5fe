"""Counts of the graphs that PyTorch/XLA compiled, and Neuron's tool that compiles them before a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from recipe_core import Job, LaunchError
from recipe_core.engine.machine.environment import is_on
from recipe_core.engine.neuron import stack
from recipe_core.launch.worker import worker
from recipe_xla.machine import pjrt_device

_TOOL = "neuron_parallel_compile"
_CACHE = "/var/tmp/neuron-compile-cache"


class XlaCompiler:
    """See :class:`recipe_core.engine.compiled.Compiler`."""

    name, always = "PyTorch/XLA", True

    def count(self) -> tuple[int, int]:
        """See :class:`recipe_core.engine.compiled.Compiler`."""
        from torch_xla.debug import metrics

        return metrics.counter_value("UncachedCompile") or 0, (metrics.metric_data("CompileTime") or (0,))[0]

    def kept(self) -> str:
        """See :class:`recipe_core.engine.compiled.Compiler`."""
        kind = pjrt_device()
        if kind != "NEURON":
            return f"a process of XLA on {kind} finds none of another's, so that the run compiles as many once more"
        return "kept where NEURON_COMPILE_CACHE_URL says"


def precompile(job: Job, words: Sequence[str], out: Path | None, processes: int) -> int | None:
    """Compile by Neuron's tool; see :class:`recipe_core.hooks.specs.EngineSpec`."""
    here = stack.at_hand(job.train.device, "xla") is not None and worker() is None
    return _extract(words, out, processes) if here and not is_on(os.environ, "NEURON_EXTRACT_GRAPHS_ONLY") else None


def _extract(words: Sequence[str], out: Path | None, processes: int) -> int:
    # The tool runs this command again to collect its graphs, and compiles them in parallel.
    tool = shutil.which(_TOOL)
    if tool is None:
        raise LaunchError(
            f"{_TOOL} is not on the path; it comes with torch-neuronx: `recipe doctor` says what is wrong"
        )
    place = os.environ.get("NEURON_COMPILE_CACHE_URL") or _CACHE
    before, start = _neffs(place), time.monotonic()
    more = ["--out", str(out)] if out else []
    command = [
        tool,
        sys.executable,
        "-m",
        "recipe_core.cli",
        "precompile",
        *words,
        "--processes",
        str(processes),
        *more,
    ]
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        count = "" if before is None else f"{(_neffs(place) or 0) - before} graphs compiled, "
        print(f"recipe precompile: {count}{time.monotonic() - start:.0f} s; kept in {place}")
    return code


def _neffs(place: str) -> int | None:
    # None for a cache outside of the file system (S3)
    return None if "://" in place else sum(1 for _ in Path(place).rglob("*.neff"))
