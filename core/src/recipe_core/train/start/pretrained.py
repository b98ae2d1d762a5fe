"""Pre-trained models for recipes that start from one: runs of other recipes, or checkpoints of any format.

Imports no torch itself; functions that need it import it when called.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.checkpoint.locate import Request, StoredCheckpoint, find
from recipe_core.errors import ExitCode, RecipeError
from recipe_core.files import write_text
from recipe_core.files.documents import read_json
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs import Part
from recipe_core.hooks.specs import load as load_function
from recipe_core.launch.failures import FILE, SPARE
from recipe_core.launch.supervisor import STORE, SUPERVISOR
from recipe_core.train.start.check import checked_job
from recipe_core.train.start.destination import file_name

if TYPE_CHECKING:
    from recipe_core.settings.job import Job

_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", STORE, FILE, SPARE)
"""Variables that make a process a rank; under srun, ``SLURM_STEP_ID``."""


class TrainingFailedError(RecipeError):
    """A run that another run needs failed."""


def job_of(name: str) -> Job:
    """The job of ``recipe run NAME`` on its default number of processes.

    Raises:
        RecipeError: there is no such recipe, or its settings do not fit together.
    """
    return checked_job(load(), name)


def trained(name: str, cache: Path, stopped: Callable[[], object]) -> Path | None:
    """The folder of a finished run of ``recipe run NAME`` in ``cache``; trains it first if there is none.

    The run is a separate process that prints to this console, so that its memory is freed. If several processes call
    this at once, one trains and the others wait. An interrupted run resumes.

    Args:
        name: recipe, or recipe:variant.
        cache: folder of this machine.
        stopped: returns a true value once a signal has arrived; the run then saves and ends.

    Returns:
        The run folder; None where a signal ended it.

    Raises:
        TrainingFailedError: the run failed; its messages are on the console.
        DiskError: ``cache`` cannot be written.
    """
    from filelock import FileLock

    out = _folder(name, cache)
    if _finished(out):
        return out
    # write_text makes the folder, and turns a disk that cannot be written into a message.
    write_text(out.with_name(f".{out.name}.lock"), "")
    with FileLock(out.with_name(f".{out.name}.lock")):
        if not _finished(out):
            code = None if stopped() else _run(name, out, stopped)
            if code not in (None, ExitCode.FINISHED, ExitCode.STOPPED):
                raise TrainingFailedError(
                    f"recipe run {name} --out {out}: ended with exit code {code}, and this run begins with its model; "
                    "see what it said above, or name another model"
                )
    return out if _finished(out) else None


def checkpoint_at(path: Path) -> StoredCheckpoint:
    """The checkpoint at or below ``path``; file sizes are checked, hashes are not.

    Raises:
        CheckpointError: there is no intact checkpoint of a known format.
    """
    return find(load(), path, hashes=False)


def has_adapters(path: Path) -> bool:
    """True if a transform added weights to the checkpoint at ``path``, which the model alone does not have."""
    train = checkpoint_at(path).job.get("train")
    names = train.get("transforms") if isinstance(train, Mapping) else None
    return any(load().get("transform", str(name)).merge for name in names or ())


def require_transforms_of(path: Path, job: Job) -> None:
    """Refuse to resume from the checkpoint at ``path`` if it was trained with other transforms than those of ``job``.

    Raises:
        CheckpointError: they differ in more than what is free to change.
    """
    check = load_function("recipe_core.checkpoint.match.transforms:require_same_transforms", "the core")
    check(job.transforms, checkpoint_at(path), load())


def to_hugging_face(source: Path, target: Path, recipe: str | None = None) -> None:
    """Convert the weights of any checkpoint into ``target``, a folder for Hugging Face's ``from_pretrained``.

    Args:
        source: a run folder (its newest checkpoint is used), or a checkpoint's folder or file.
        target: a new folder, which appears when it is complete.
        recipe: a recipe with the model of ``source``, where the checkpoint records none.

    Raises:
        CheckpointError: ``source`` is damaged, or Hugging Face has no counterpart of its model.
        DiskError: ``target`` cannot be written.
    """
    registry = load()
    spec = registry.get("checkpoint", "hf")
    request = Request(source=source, target=target, to=Part(spec, spec.config()), recipe=recipe, drop_optimizer=True)
    load_function("recipe_core.checkpoint.convert.convert:convert", "the core")(registry, request)


def _folder(name: str, cache: Path) -> Path:
    # One folder per settings, Python (whose text may be the corpus) and PyTorch.
    from importlib.metadata import version

    made_by = [job_of(name).as_yaml(), sys.version, version("torch")]
    return cache / f"trained-{file_name(name)}-{blake2b(chr(0).join(made_by).encode(), digest_size=6).hexdigest()}"


def _finished(out: Path) -> bool:
    try:
        results = read_json(out / "results.json")
        return bool(results["step"] == results["steps"] or results.get("ended_by"))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _run(name: str, out: Path, stopped: Callable[[], object]) -> int:
    # The supervisor's PID in the environment ends the child with this process.
    rank_variables = (*_OF_A_RANK, "SLURM_STEP_ID")
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in rank_variables and not key.startswith("TORCHELASTIC_")
    }
    env[SUPERVISOR] = str(os.getpid())
    line = [sys.executable, "-m", "recipe_core.cli", "run", name, "--out", str(out)]
    with subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL) as child:
        while child.poll() is None:
            if stopped():
                child.terminate()
                return child.wait()
            time.sleep(0.05)
    return child.returncode


def unchecked(folder: Path) -> str:
    """A sentence that names the files of a Hugging Face folder without checksums; empty if there are none."""
    stored = StoredCheckpoint(path=folder, format=load().get("checkpoint", "hf"))
    return stored.unchecked() if stored.reader().detect(folder) else ""
