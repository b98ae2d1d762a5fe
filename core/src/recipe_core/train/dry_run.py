"""Two steps of a run that leave nothing behind but the graphs that were compiled for them."""

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


def rehearse(job: Job, folder: Path) -> None:
    """Run ``job`` as far as it says, without checkpoints and logs; rank 0 tells what was compiled.

    Args:
        job: with few steps, nothing to resume from and no golden curve.
        folder: for what a run needs on the way; the same for all ranks.
    """
    start = time.perf_counter()
    found: dict[str, object] = {}
    with contextlib.suppress(*([DivergedError] if computes_nothing(os.environ) else [])):
        found = run(job, folder, rehearsal=True)
    if found:
        seconds = time.perf_counter() - start
        show(f"{job.name}: {found['graphs']}, {seconds:.1f} s; {found['kept']}")
