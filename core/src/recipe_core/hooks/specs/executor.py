"""Executors, which run the parts of a preparation in other processes, and the tasks that they get. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.hooks.specs import Spec
from recipe_core.hooks.target import called

if TYPE_CHECKING:
    from concurrent.futures import Future


@dataclass(frozen=True, kw_only=True)
class PartTask:
    """One part of a preparation, as a command for any machine that sees the same files. It can be pickled."""

    number: int
    """Number of the part, from 1."""
    arguments: tuple[str, ...]
    """Arguments of the command ``recipe``. The first ones are the same for all parts."""
    folder: Path
    """Working directory, absolute."""
    log: Path
    """File to which both output streams are appended, absolute."""


@dataclass(frozen=True, kw_only=True)
class ExecutorRun:
    """A preparation for an executor: where it runs, and what its tasks need."""

    name: str
    """Name of the preparation: letters, digits, ``_``, ``-`` and ``.`` only."""
    address: str
    """Text after the colon of ``--on NAME:ADDRESS``; empty: none."""
    folder: Path
    """Folder for files of the executor, absolute and in existence. It removes its files when they are not needed."""
    cpus: int = 1
    """Processes of each task."""
    program: tuple[str, ...] = ()
    """The command ``recipe`` as a list of arguments, from the site profile; empty: this Python's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of each task, from the site profile, unless the machine sets them."""
    setup: str = ""
    """Shell commands before each task, from the site profile."""


Submit = Callable[[Sequence[PartTask]], "Sequence[Future[int]]"]
"""Starts tasks and returns at once; see :class:`ExecutorSpec`."""


@dataclass(frozen=True, kw_only=True)
class ExecutorSpec(Spec):
    """``build(config, run) -> context manager``: runs the parts of a preparation, for ``--on NAME[:ADDRESS]``.

    ``config`` is the section of the site profile that has the executor's name, ``run`` an :class:`ExecutorRun`. The
    context manager gives ``submit(tasks)``, which starts tasks and returns a ``concurrent.futures.Future`` for each, in
    order. The result of a future is the exit code of the task's command, -N for signal N, as
    :func:`recipe_core.data.prepare.run_part` returns it; an exception means that the task was lost, for example with
    its machine. A task that was lost or killed is submitted again some times, one whose future is cancelled is not.
    At the end of the context, tasks that still wait or run are ended. Errors in reaching the engine are a LaunchError.
    """

    build: str = field(metadata=called("config", "run"))
