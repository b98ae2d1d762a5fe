"""A run whose working folder belongs to an address of object storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from recipe_core.checkpoint.remote import lock, record
from recipe_core.checkpoint.remote.checkpoints import FOLDER, RemoteCheckpoints
from recipe_core.checkpoint.remote.mirror import mirrored
from recipe_core.checkpoint.remote.objects import Objects
from recipe_core.engine.protocol import Ranks
from recipe_core.errors import ConfigError
from recipe_core.hooks.specs import CORE_LOOP
from recipe_core.launch.notice import notice
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.settings.job import Job
from recipe_core.train.metrics.report import warn


@contextmanager
def stored_run(out: Path, ranks: Ranks) -> Iterator[RemoteCheckpoints | None]:
    """Yield the checkpoints in object storage of the run in ``out``, and copy its files there; a collective.

    None for the folder of a run on this machine.

    Raises:
        CheckpointError: the checkpoint that was committed last is not there.
        DiskError: this process was not started for the address.
        ObjectError: the storage refuses it, or does not answer.
    """
    known = record.read(out)
    if known is None:
        yield None
        return
    objects = Objects.at(known.address)
    with ExitStack() as stack:
        before_commit: Callable[[], object] = bool
        if ranks.rank == 0:
            before_commit = stack.enter_context(mirrored(objects, out, known.lock, warn)).copy
        remote = RemoteCheckpoints(
            objects, out / FOLDER, claim=partial(lock.require, objects, known.lock), before_commit=before_commit
        )  # fmt: skip
        beat.enter("downloading the checkpoint")
        notice(f"looking for checkpoints at {known.address}")
        remote.restore(ranks)
        yield remote


def require_possible(job: Job, address: str) -> None:
    """Check that a run of ``job`` can have its files in object storage.

    Raises:
        ConfigError: its recipe has its own training loop, or it returns to an earlier step.
    """
    if job.recipe.run != CORE_LOOP:
        raise ConfigError(
            f"--out: recipe {job.recipe.name!r} has its own training loop, whose checkpoints are not uploaded; "
            f"expected a path on this machine, got {address}. Copy the folder there after the run"
        )
    if job.train.resume_step is not None:
        raise ConfigError(
            f"train.resume: {job.train.resume} is only possible in a folder on this machine, and --out is {address}; "
            "download the run and begin another one from that checkpoint, with train.resume=PATH"
        )
