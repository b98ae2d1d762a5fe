"""The command ``recipe precompile``. No torch here."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.engine.select import spec_of
from recipe_core.errors import ConfigError
from recipe_core.launch import worker
from recipe_core.train.start.destination import DRY_RUN

if TYPE_CHECKING:
    from recipe_core.settings.job import Job

# The dry run ends after two steps, begins with random weights, and keeps nothing.
_SHORT = (
    "train.stop_after=2", "train.resume=none", "train.init_from=null", "train.golden=null", "train.save_every=0",
    "train.save_minutes=0", "train.log_every=1",
)  # fmt: skip


def dry_run_words(words: Sequence[str]) -> list[str]:
    """The words of a run as those of its dry run."""
    return [*words, *_SHORT]


def precompile(job: Job, words: Sequence[str], out: Path | None, processes: int) -> int:
    """Compile what the run of ``job`` needs, in this process or in several; return the exit code.

    Args:
        job: of :func:`dry_run_words`.
        words: of the run, as they were typed.
        out: folder in which the dry run gets a folder of its own, which all ranks see; a run folder will do.
        processes: ranks to start here; 1 where this process is a rank.
    """
    if job.recipe.run != "recipe_core.train.run:run":
        raise ConfigError(
            f"recipe {job.recipe.name!r} has a training loop of its own, which cannot be cut to a dry run"
        )
    from recipe_core.hooks.specs import load

    spec = spec_of(job.engine)
    code = load(spec.precompile, "recipe precompile")(job, words, out, processes) if spec.precompile else None
    if code is not None:
        return int(code)
    with tempfile.TemporaryDirectory(prefix="recipe-precompile-") as temporary:
        place = out or Path(temporary)
        if processes > 1:
            command = [sys.executable, "-m", "recipe_core.cli", "precompile", *words, "--out", str(place)]
            return worker.supervise(command, processes, Path(temporary) / "logs")
        load("recipe_core.train.dry_run:dry_run", "recipe precompile")(job, place / DRY_RUN)
    return 0
