"""A dry run: a few steps that only compile graphs."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from recipe_core.engine.compiled import computes_nothing
from recipe_core.errors import DivergedError
from recipe_core.settings.job import Job
from recipe_core.train.metrics.report import show
from recipe_core.train.run import run


def dry_run(job: Job, folder: Path) -> None:
    """Run ``job`` without checkpoints and logs; rank 0 prints the compiled graphs.

    Args:
        job: with few steps, nothing to resume from and no golden curve.
        folder: for temporary files; the same for all ranks.
    """
    start = time.perf_counter()
    compiled: dict[str, object] = {}
    with contextlib.suppress(*([DivergedError] if computes_nothing(os.environ) else [])):
        compiled = run(job, folder, dry_run=True)
    if compiled:
        seconds = time.perf_counter() - start
        show(f"{job.name}: {compiled['graphs']}, {seconds:.1f} s; {compiled['kept']}")
