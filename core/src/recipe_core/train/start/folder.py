"""The run folder: whose it is, and whether a run may continue in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from recipe_core.engine import agreement
from recipe_core.engine.agreement import on_rank_0
from recipe_core.engine.protocol import Engine
from recipe_core.errors import ConfigError, DiskError
from recipe_core.files import disk_error, lock_now, write_text
from recipe_core.files.documents import DocumentError, read_yaml
from recipe_core.launch.identity import identity
from recipe_core.launch.process import noted
from recipe_core.settings.fill import flat
from recipe_core.settings.job import Job
from recipe_core.train.metrics.report import warn
from recipe_core.train.start.destination import LOCK, begun, require_run_folder

FIXED = ("recipe", "model", "data", "train.seed", "train.global_batch", "train.precision")
"""Settings that a run must keep when it continues: they decide what the weights mean and which samples come next."""


def agree(out: Path, job: Job, engine: Engine) -> None:
    """See that all ranks were started alike and see one ``out``, before any memory is filled; all of them call it.

    Raises:
        ConfigError: they do not agree; or ``out`` may not be used, as :func:`claimed` says.
    """

    def require_usable() -> None:
        require_own(out, job)
        if not begun(out):
            require_run_folder(out)

    for line in agreement.agree(
        engine, identity(job, engine.world_size, agreement.LIBRARIES, agreement.VARIABLES), require_usable, out
    ):
        if engine.rank == 0:
            warn(line)


@contextmanager
def claimed(out: Path, job: Job, engine: Engine) -> Iterator[None]:
    """Make ``out`` (rank 0), write ``job.yaml`` into it, and hold off other runs for the block; all ranks fail alike.

    Raises:
        ConfigError: ``out`` holds a run of another model, data set or order of samples that took a step; or another
            process trains in it.
        DiskError: ``out`` cannot be written.
    """
    with ExitStack() as locks:
        on_rank_0(engine, lambda: _claim(out, job, locks), out)
        yield


def _claim(out: Path, job: Job, locks: ExitStack) -> None:
    require_own(out, job)
    path = out / "job.yaml"
    if not path.exists() or not begun(out):
        require_run_folder(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, f"{out}: cannot be made ({error.strerror}); give another --out") from error
    if not os.access(out, os.W_OK):
        raise DiskError(f"{out}: no permission to write; give another --out")
    try:  # two runs would spoil each other's metrics and remove each other's checkpoints
        lock = lock_now(out / LOCK)
    except OSError as error:
        raise disk_error(error, f"{out}: cannot be written ({error.strerror}); give another --out") from error
    if lock is None:
        raise ConfigError(f"{out}: another process trains in this folder; wait for its end, or give another --out")
    locks.enter_context(lock)
    locks.enter_context(noted(out))
    write_text(path, job.as_yaml())


def require_own(out: Path, job: Job) -> None:
    """Refuse a folder whose run took a step with other settings than ``job`` may continue it with.

    Raises:
        ConfigError: it holds such a run, or its job.yaml cannot be read.
    """
    path = out / "job.yaml"
    if path.exists() and begun(out):
        changed = [f"{key} was {old!r} and is {new!r}" for key, old, new in _changes(_read(path), job.as_dict())]
        if changed:
            raise ConfigError(
                f"{out} holds another run: {'; '.join(changed)}. Give another --out, or the settings of {path}"
            )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        sections = read_yaml(path)
    except (OSError, DocumentError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML ({error}); give another --out") from error
    if not isinstance(sections, Mapping):
        raise ConfigError(f"{path}: expected settings as `recipe show` prints them; give another --out")
    return sections


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Settings among FIXED that differ: their path, the old and the new value."""
    before, now = dict(flat(old)), dict(flat(new))
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key) and any(key == f or key.startswith(f"{f}.") for f in FIXED):
            yield key, before.get(key), now.get(key)
