"""results.json, and the summary at the end of a run."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recipe_core.checkpoint.remote import record
from recipe_core.errors import DiskError, DivergedError, ExitCode
from recipe_core.files import write_text
from recipe_core.files.documents import read_json
from recipe_core.settings.job import Job
from recipe_core.train.metrics.curves import METRICS, Row
from recipe_core.train.metrics.report import show, summary, warn

RESULTS = "results.json"


def measured(rows: Sequence[Row]) -> dict[str, float | None]:
    """First and last value of each loss, accuracy and evaluation in rows of metrics.jsonl, and medians of speeds."""
    return {**_ends(rows), **_speeds(rows)}


def write_results(results: Mapping[str, Any], out: Path) -> None:
    """Write results.json into the run folder ``out``; one process calls it.

    Raises:
        DiskError: the file cannot be written.
    """
    write_text(out / RESULTS, json.dumps(results, indent=2) + "\n")


def merged(results: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """``results`` updated by a recipe's own, with the ``notes`` of both."""
    notes = {**extra.get("notes", {}), **results.get("notes", {})}
    return {**results, **extra, **({"notes": notes} if notes else {})}


def conclude(results: Mapping[str, Any], job: Job, out: Path) -> None:
    """Write ``results`` into the run folder ``out``, and print the summary; one process calls it.

    Raises:
        DiskError: the file cannot be written.
    """
    write_results(results, out)
    if not (out / METRICS).exists():
        warn(f"{out / METRICS} was removed after its last row was written: the rows of this run are gone")
    stored, generates = record.read(out), bool(job.model.spec.generate)
    folder, address = os.path.relpath(out), stored.address if stored else ""
    tensorboard = "tensorboard" in job.train.trackers
    show(summary(results, job.name, folder, address=address, tensorboard=tensorboard, generates=generates))


def note_stop(out: Path, job: Job, signal: str, step: int, consumed_samples: int) -> None:
    """Record in results.json that a signal ends the run after ``step``, which its checkpoints already hold.

    Measurements of an earlier invocation are kept.
    """
    known = {"step": step, "steps": job.train.steps, "consumed_samples": consumed_samples}
    write_results(_earlier(out, job, **known) | {"stopped": signal, "exit_code": int(ExitCode.STOPPED)}, out)


@contextmanager
def noting_divergence(out: Path, job: Job, rank: int) -> Iterator[None]:
    """Record in results.json that the block ended by divergence; measurements of an earlier invocation are kept."""
    try:
        yield
    except DivergedError as error:
        if rank == 0 and out.is_dir():
            ending = {"stopped": None, "exit_code": int(error.exit_code), "reason": str(error).partition("\n")[0]}
            with suppress(DiskError):  # the user gets the error about the divergence
                write_results(_earlier(out, job, steps=job.train.steps) | ending, out)
        raise


def _earlier(out: Path, job: Job, **known: int) -> dict[str, Any]:
    try:
        return dict(read_json(out / RESULTS))
    except (OSError, ValueError, TypeError):
        return {"recipe": job.name, **known}


def _ends(rows: Sequence[Row]) -> dict[str, float | None]:
    """First and last value of each loss, accuracy and evaluation; None if it was not finite.

    ``loss_step`` and ``val_loss_step`` name the step of the last value: a run that stopped between two evaluations has
    an older validation loss.
    """
    known = ("first_loss", "loss", "loss_step", "first_val_loss", "val_loss", "val_loss_step")
    ends: dict[str, float | None] = dict.fromkeys(known)
    for row in rows:
        for key, value in row.items():
            if key.endswith(("loss", "accuracy")) or "/" in key:
                ends[f"first_{key}"] = value if ends.get(f"first_{key}") is None else ends[f"first_{key}"]
                ends[key] = value
        ends |= {f"{key}_step": row["step"] for key in ("loss", "val_loss") if key in row}
    return ends


def _speeds(rows: Sequence[Row]) -> dict[str, float | None]:
    # medians, because the first row includes compilation
    keys = ("sequences_per_second", "real_tokens_per_second", "tokens_per_second", "mfu")
    values = {key: [row[key] for row in rows if row.get(key) is not None] for key in keys}
    medians = {key: statistics.median(numbers) for key, numbers in values.items() if numbers}
    return {"tokens_per_second": None, **medians}
