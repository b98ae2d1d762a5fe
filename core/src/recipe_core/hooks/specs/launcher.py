"""Launchers, which start a run on other machines through a batch system, and the submission that they get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recipe_core.hooks.specs import Spec
from recipe_core.hooks.target import called

JobState = Literal["waiting", "running", "ended", "unknown"]
"""State of a submitted job. ``unknown``: the batch system does not answer, or no longer knows the job."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A run for a batch system: folders, size, time limit and command."""

    name: str
    """Name of the job: letters, digits, ``_``, ``-`` and ``.`` only."""
    out: Path
    """The run folder, absolute. It holds ``job.yaml``; with ``array``, a folder ``seed-I`` for each run holds one."""
    job: str
    """Content of ``job.yaml``, for machines that do not see the run folder."""
    seed: int
    """``train.seed`` of the job; run I of an array adds I."""
    folder: Path
    """Working directory of every rank, absolute."""
    program: tuple[str, ...]
    """The command ``recipe`` as a list of arguments, from the site profile; empty: the launcher's default."""
    nodes: int
    processes_per_node: int
    minutes: int
    """Time limit; 0: none."""
    stop_seconds: int
    """Seconds before the time limit at which the run has to save and stop."""
    exit_seconds: int
    """Seconds that the other ranks have to end after the first one has ended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of each rank, unless the machine sets them."""
    setup: str = ""
    """Shell commands before the run, from the site profile."""
    array: int = 0
    """Number of runs, each with its own seed and folder; 0: a single run."""
    precompile: bool = False
    """Compile the graphs in a job before the run, which starts only if that succeeds."""
    check_nodes: bool = False
    """Run `recipe check --on-nodes` on the nodes of the job before the run, which starts only if that succeeds."""

    @property
    def launch_folder(self) -> Path:
        """The folder of the scripts, in the run folder."""
        return self.out / "launch"


@dataclass(frozen=True, kw_only=True)
class Launcher(Spec):
    """``build(submission, config) -> Mapping[str, str]``: the files to write, by name, the one to submit first.

    ``config`` is the section of the site profile that has the launcher's name. Nothing here imports torch.
    """

    build: str = field(metadata=called("submission", "config"))
    sees_files: bool = True
    """Its jobs see the files of this machine. Otherwise, the job itself checks absolute paths that are missing here."""
    checks_nodes: bool = False
    """Its jobs can check their nodes first (``Submission.check_nodes``)."""
    submit: str = field(default="", metadata=called("folder", "files"))
    """``package.module:function(folder, files) -> str``: submits the files, which are in ``folder``, and returns the
    id of the job. Empty: the files are printed, for another program to take."""
    state: str = field(default="", metadata=called("job_id"))
    """``package.module:function(job_id) -> JobState``."""
    stop: str = field(default="", metadata=called("job_id", "state"))
    """``package.module:function(job_id, state) -> None``: asks a job to save and stop; cancels one that waits."""
