"""The command ``recipe precompile``. No torch here."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.engine.select import spec_of
from recipe_core.errors import ConfigError
from recipe_core.hooks.specs import CORE_LOOP
from recipe_core.launch import worker
from recipe_core.train.start.destination import DRY_RUN

if TYPE_CHECKING:
    from recipe_core.settings.job import Job

# Two steps from random weights, without checkpoints.
_DRY_RUN_OVERRIDES = (
    "train.stop_after=2", "train.resume=none", "train.init_from=null", "train.golden=null", "train.save_every=0",
    "train.save_minutes=0", "train.log_every=1",
)  # fmt: skip


def dry_run_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a run with the overrides of its dry run."""
    return [*arguments, *_DRY_RUN_OVERRIDES]


def precompile(job: Job, arguments: Sequence[str], out: Path | None, processes: int) -> int:
    """Compile the graphs of a run, in this process or in several; return the exit code.

    Args:
        job: resolved from :func:`dry_run_arguments`.
        arguments: of the run, as typed.
        out: folder that all ranks see, such as the run folder; the dry run writes into a subfolder.
        processes: ranks to start here; 1 if this process is a rank.

    Raises:
        ConfigError: the recipe has its own training loop.
    """
    if job.recipe.run != CORE_LOOP:
        raise ConfigError(
            f"recipe {job.recipe.name!r} has a training loop of its own, which cannot be cut to a dry run"
        )
    from recipe_core.hooks.specs import load

    spec = spec_of(job.engine)
    code = load(spec.precompile, "recipe precompile")(job, arguments, out, processes) if spec.precompile else None
    if code is not None:
        return int(code)
    with tempfile.TemporaryDirectory(prefix="recipe-precompile-") as temporary:
        folder = out or Path(temporary)
        if processes > 1:
            command = [sys.executable, "-m", "recipe_core.cli", "precompile", *arguments, "--out", str(folder)]
            return worker.supervise(command, processes, Path(temporary) / "logs")
        load("recipe_core.train.dry_run:dry_run", "recipe precompile")(job, folder / DRY_RUN)
    return 0
