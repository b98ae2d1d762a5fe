"""The command ``recipe precompile``. No torch here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_core.engine import environment, stack
from recipe_core.errors import ConfigError, LaunchError
from recipe_core.launch import worker
from recipe_core.train.destination import TRIAL

if TYPE_CHECKING:
    from recipe_core.settings.job import Job

_TOOL = "neuron_parallel_compile"
_LEGACY_CACHE = "/var/tmp/neuron-compile-cache"
# The trial run ends after two steps, begins with random weights, and keeps nothing.
_TRIAL = (
    "train.stop_after=2", "train.resume=none", "train.init_from=null", "train.golden=null", "train.save_every=0",
    "train.save_minutes=0", "train.log_every=1",
)  # fmt: skip


def trial_words(words: Sequence[str]) -> list[str]:
    """The words of a run as those of its trial."""
    return [*words, *_TRIAL]


def precompile(job: Job, words: Sequence[str], out: Path | None, processes: int) -> int:
    """Compile what the run of ``job`` needs, in this process or in several; return the exit code.

    Args:
        job: of :func:`trial_words`.
        words: of the run, as they were typed.
        out: folder in which the trial run gets a folder of its own, which all ranks see; it may be that of a run.
        processes: ranks to start here; 1 where this process is a rank.
    """
    if job.recipe.run != "recipe_core.train.run:run":
        raise ConfigError(f"recipe {job.recipe.name!r} has a training loop of its own, which cannot be cut to a trial")
    kind = stack.at_hand(job.train.device, job.train.engine)
    me = worker.worker()
    if kind == "legacy" and me is None and not environment.is_on(os.environ, "NEURON_EXTRACT_GRAPHS_ONLY"):
        return _extract(words, out, processes)
    if kind is None and not job.train.compile and job.train.engine != "xla":
        raise ConfigError(
            f"train.compile: false, and device {job.train.device} compiles nothing by itself; say train.compile=true"
        )
    if kind == "native":
        os.environ.setdefault("TORCH_NEURONX_COMPILE_ONLY", "1")
    with tempfile.TemporaryDirectory(prefix="recipe-precompile-") as temporary:
        place = out or Path(temporary)
        if processes > 1:
            command = [sys.executable, "-m", "recipe_core.cli", "precompile", *words, "--out", str(place)]
            return worker.supervise(command, processes, Path(temporary) / "logs")
        from recipe_core.hooks.specs import load

        load("recipe_core.train.dry_run:rehearse", "recipe precompile")(job, place / TRIAL)
    return 0


def _extract(words: Sequence[str], out: Path | None, processes: int) -> int:
    """Have Neuron's tool run this command once more to collect its graphs, and compile them side by side."""
    tool = shutil.which(_TOOL)
    if tool is None:
        raise LaunchError(
            f"{_TOOL} is not on the path; it comes with torch-neuronx: `recipe doctor` says what is wrong"
        )
    place = os.environ.get("NEURON_COMPILE_CACHE_URL") or _LEGACY_CACHE
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
        click.echo(f"recipe precompile: {count}{time.monotonic() - start:.0f} s; kept in {place}")
    return code


def _neffs(place: str) -> int | None:
    """Compiled graphs in a folder; None for a cache elsewhere (S3)."""
    return None if "://" in place else sum(1 for _ in Path(place).rglob("*.neff"))
