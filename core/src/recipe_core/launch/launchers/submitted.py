"""The record of a submitted job in its run folder."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from recipe_core.files import write_text
from recipe_core.files.documents import read_record

NOTE = "submitted.json"


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job that ``recipe submit`` handed to a batch system."""

    launcher: str
    job_id: str
    submitted: float
    """Seconds since the epoch."""


def note(launch_folder: Path, launcher: str, job_id: str) -> None:
    """Write the record of a job that was just submitted."""
    record = Submitted(launcher=launcher, job_id=job_id, submitted=time.time())
    write_text(launch_folder / NOTE, json.dumps(asdict(record)) + "\n")


def read_note(out: Path) -> Submitted | None:
    """Return the record in the run folder ``out``; None if there is none.

    A run of an array (``seed-I``) has the job id ``JOB_I``, which is that task's in the batch system.
    """
    single = read_record(out / "launch" / NOTE, Submitted)
    if single is not None or not out.name.startswith("seed-"):
        return single
    array = read_record(out.parent / "launch" / NOTE, Submitted)
    return replace(array, job_id=f"{array.job_id}_{out.name.removeprefix('seed-')}") if array else None
