"""The watchdog of a run, built from its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from recipe_core.errors import ConfigError
from recipe_core.hooks.train import Train
from recipe_core.launch.watch.watchdog import Watchdog, backend_timeout
from recipe_core.launch.worker import worker
from recipe_core.train.metrics.report import warn
from recipe_core.train.start.destination import LOGS, begun, require_run_folder

Settings = TypeVar("Settings", bound=Train)


def watched(train: Train, out: Path) -> Watchdog:
    """The watchdog of this rank of the run in ``out``; enter it before the ranks meet."""
    me = worker()
    rank, world_size = (me.rank, me.world_size) if me else (0, 1)
    return Watchdog(_logs(out), rank, world_size, train.timeout, train.on_hang, warn)


def patient(train: Settings) -> Settings:
    """Settings for the engine: its collectives wait longer than the watchdog, which can name the rank."""
    return replace(train, timeout=backend_timeout(train.timeout))


def _logs(out: Path) -> Path | None:
    # None if `out` is not a run folder: rank 0 refuses it, and nothing may be written.
    try:
        if not begun(out):
            require_run_folder(out)
    except ConfigError:
        return None
    return out / LOGS
