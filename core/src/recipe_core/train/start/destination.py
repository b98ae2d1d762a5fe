"""The folder of a run: which ones may be used, and its name where ``--out`` gives none."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from recipe_core.checkpoint.remote.record import FILE as STORED
from recipe_core.errors import ConfigError, DiskError, LaunchError
from recipe_core.files import disk_error, final_name, require_local
from recipe_core.files.documents import MOST_YAML, DocumentError, parse_yaml, read_text
from recipe_core.launch.process import started
from recipe_core.launch.worker import Worker
from recipe_core.train.metrics.curves import METRICS, scan

RUNS = Path("runs")
LOCK = ".lock"
DRY_RUN = "dry-run"
"""Folder in a run folder for the files of `recipe precompile`."""
LOGS = "logs"
"""Folder in a run folder for the output and the heartbeats of each rank."""
_BEFORE_A_RUN = {LOGS, "launch", LOCK, DRY_RUN, STORED}
"""Entries that exist before a run writes job.yaml."""
_UNFINISHED = {"agreement", "job.yaml"}
"""Files that a run writes under a hidden name at its start; they remain if it is killed."""
_SECTIONS = {"recipe", "model", "data", "layout", "checkpoint", "train"}


def require_run_folder(out: Path) -> None:
    """Raise ConfigError if ``out`` is remote, or holds anything but a run."""
    require_local(out, "--out")
    if not out.exists():
        return
    if not (out / "job.yaml").exists():
        if not out.is_dir() or not all(_before_a_run(path.name) for path in out.iterdir()):
            raise ConfigError(f"{out} exists and is not a run folder (no job.yaml in it); give another --out")
    elif not _is_our_job(out / "job.yaml"):
        raise ConfigError(
            f"{out} exists and is not a run folder ({out / 'job.yaml'} is none that a run wrote); give another --out"
        )


def _before_a_run(name: str) -> bool:
    final = final_name(name)
    return final in _BEFORE_A_RUN or (final != name and final in _UNFINISHED)


def begun(out: Path) -> bool:
    """True if the run of ``out`` has checkpoints or metrics. One that failed before its first step has none: after a
    fix, it may use the folder again."""
    folder = out / "checkpoints"
    if folder.is_dir() and any(folder.iterdir()):
        return True
    damaged: dict[int, bytes] = {}
    return any(row.get("step") for row in scan(out / METRICS, damaged)) or bool(damaged)


def _is_our_job(path: Path) -> bool:
    # A run's job.yaml has all sections and no comment; other programs have files of that name too.
    try:
        text = read_text(path, MOST_YAML)
        sections = parse_yaml(text)
    except (OSError, DocumentError):
        return False
    commented = any(line.lstrip().startswith("#") for line in text.splitlines())
    return isinstance(sections, Mapping) and sections.keys() >= _SECTIONS and not commented


def new_folder(name: str) -> Path:
    """Make a new folder ``runs/NAME-<time>``."""
    stem = f"{file_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        folder = RUNS / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:  # several runs that a script started in the same second
            if not RUNS.is_dir():
                raise DiskError(f"{RUNS}: expected a folder to put runs into; name another with --out") from None
            number += 1
        except OSError as error:
            raise disk_error(error, folder, "cannot be made", "name another folder with --out") from error
        else:
            return folder


def shared_folder(name: str, worker: Worker) -> Path:
    """``runs/NAME-<launch>``, which every rank of a launch by torchrun or srun derives from its environment.

    Raises:
        LaunchError: the launcher gives the launch no unique name.
    """
    launch = _slurm_step(os.environ) if worker.launcher == "srun" else _torchrun_launch(os.environ, worker)
    if launch is None:
        raise LaunchError(
            "the ranks cannot agree on a run folder, for torchrun gives this run no name; add --out DIR, or give "
            "torchrun --rdzv-id=NAME"
        )
    return RUNS / f"{file_name(name)}-{file_name(launch)}"


def _slurm_step(env: Mapping[str, str]) -> str:
    # A job that Slurm restarts keeps its number, and so continues in its folder.
    return f"slurm-{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}"


def _torchrun_launch(env: Mapping[str, str], worker: Worker) -> str | None:
    name = env.get("TORCHELASTIC_RUN_ID", "none")
    if name != "none":  # torchrun's default
        return name
    return _parent() if worker.local_world_size == worker.world_size else None


def _parent() -> str | None:
    # PID and start time of the parent process, which the ranks of one machine share; None except on Linux
    start = started(os.getppid())
    return f"torchrun-{os.getppid()}-{start}" if start.isdigit() else None


def file_name(text: str) -> str:
    """``text`` with the characters replaced that a file name may not have."""
    return re.sub(r"[^\w.-]+", "-", text)
