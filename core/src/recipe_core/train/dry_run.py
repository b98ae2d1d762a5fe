"""Two steps of a run that leave nothing behind but the graphs that were compiled for them."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from recipe_core.engine.environment import is_on
from recipe_core.engine.neuron import NAME
from recipe_core.engine.select import pjrt_device
from recipe_core.errors import DivergedError
from recipe_core.settings.job import Job
from recipe_core.train.compiled import cache
from recipe_core.train.metrics.report import show
from recipe_core.train.run import run


def rehearse(job: Job, folder: Path) -> None:
    """Run ``job`` as far as it says, without checkpoints and logs; rank 0 tells what was compiled.

    Args:
        job: with few steps, nothing to resume from and no golden curve.
        folder: for what a run needs on the way; the same for all ranks.
    """
    start = time.perf_counter()
    nonsense = is_on(os.environ, "TORCH_NEURONX_COMPILE_ONLY") or is_on(os.environ, "NEURON_EXTRACT_GRAPHS_ONLY")
    found: dict[str, object] = {}
    with contextlib.suppress(*([DivergedError] if nonsense else [])):  # nothing is computed: a loss may be anything
        found = run(job, folder, rehearsal=True)
    if found:
        seconds = time.perf_counter() - start
        device = str(found["device"])
        show(f"{job.name}: {found['graphs']}, {seconds:.1f} s; {_kept(device)}")


def _kept(device: str) -> str:
    if device == "xla":
        kind = pjrt_device()
        if kind != "NEURON":
            return f"a process of XLA on {kind} finds none of another's, so that the run compiles as many once more"
        return "kept where NEURON_COMPILE_CACHE_URL says"
    return f"kept in {cache(device)}{_how(device)}"


def _how(device: str) -> str:
    name = "TORCH_NEURONX_NEFF_CACHE_DIR" if device == NAME else "TORCHINDUCTOR_CACHE_DIR"
    return f" ({name} names another folder; copy it for other machines)"
