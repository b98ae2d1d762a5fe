"""The command ``recipe logs``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_core.cli.cluster.status import run_folder, runs_in
from recipe_core.cli.options import debug_option, load_plugins
from recipe_core.errors import DataError

if TYPE_CHECKING:
    from recipe_core.hooks.registry import Registry

_SAME_TIME = 30.0
"""Seconds by which a script's log, which contains the ranks' lines, may be newer than their logs while they write."""
_POLL, _CHECK = 0.3, 5.0
"""Seconds between reads of the file, and between checks whether the run is still active."""


@click.command()
@run_folder
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until the run has ended.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--lines", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines (default: all).")
@debug_option
def logs(out: Path, follow: bool, rank: int, lines: int | None) -> None:
    """Print the log of a rank.

    RUN is a run folder; of several runs of `recipe submit --array`, name one: RUN/seed-0.
    """
    if len(runs := runs_in(out)) > 1:
        raise click.UsageError(f"{out} holds {len(runs)} runs; name one: {runs[0]}")
    _print(load_plugins(), runs[0], rank, lines, follow)


def newest_log(out: Path, rank: int) -> Path | None:
    """Return the log of a rank; for rank 0 the log of the job's script, if no rank has started since.

    None if there is no log.
    """
    own = out / "logs" / f"rank-{rank}.log"
    scripts = list((out / "logs").glob("slurm-*.log"))
    if out.name.startswith("seed-"):  # a run of an array, whose scripts log into one folder
        scripts += (out.parent / "logs").glob(f"slurm-*_{out.name.removeprefix('seed-')}.log")
    script = max(scripts, key=_written, default=None)
    if not own.exists():
        return script if rank == 0 else None
    return script if script is not None and rank == 0 and _written(script) > _written(own) + _SAME_TIME else own


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _print(registry: Registry, out: Path, rank: int, lines: int | None, follow: bool) -> None:
    from recipe_core.cli.cluster.run_status import ACTIVE, run_status

    offsets: dict[Path, int] = {}
    checked_at, active = time.monotonic(), follow and run_status(registry, out).state in (*ACTIVE, "unknown")
    if newest_log(out, rank) is None and not active:
        raise DataError(
            f"{out / 'logs'}: there is no log of rank {rank}; a run of one process that a terminal started has none"
        )
    while True:
        _copy(newest_log(out, rank), offsets, lines)
        if not active:
            return
        time.sleep(_POLL)
        if time.monotonic() - checked_at > _CHECK:
            checked_at, active = time.monotonic(), run_status(registry, out).state in (*ACTIVE, "unknown")


def _copy(log: Path | None, offsets: dict[Path, int], lines: int | None) -> None:
    """Print what was appended to ``log`` since the last call; ``offsets`` maps a log to the bytes already printed."""
    if log is None:
        return
    with log.open("rb") as file:
        if log not in offsets and lines is not None and not offsets:
            text = file.read()
            offsets[log] = len(text) - len(b"".join(text.splitlines(keepends=True)[-lines:] if lines else []))
        file.seek(offsets.get(log, 0))
        text = file.read()
        offsets[log] = file.tell()
    sys.stdout.write(text.decode("utf-8", "replace"))
    sys.stdout.flush()
