"""``recipe check --on-nodes``: one process on each node examines it; they exchange reports, and rank 0 judges."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.check.line import choose_target, fully_checked_job
from recipe_core.cli.check.node_table import NodeReport, Requirements, problems, table, warnings
from recipe_core.cli.check.target import figures_of, node_memory, target_of
from recipe_core.cli.options import load_plugins
from recipe_core.engine.agreement import LIBRARIES, VARIABLES, Marker
from recipe_core.errors import ConfigError, ExitCode, LaunchError, RecipeError
from recipe_core.files import disk_error
from recipe_core.hooks.target import load
from recipe_core.launch.ending import Ending, kind_of, record_ending
from recipe_core.launch.identity import identity
from recipe_core.launch.launchers.submitted import read_note
from recipe_core.launch.worker import worker
from recipe_core.train.start.check.machine import available_memory, free_space, size_of
from recipe_core.train.start.destination import RUNS

if TYPE_CHECKING:
    from recipe_core.cli.check.target import Target
    from recipe_core.engine.nodes.meeting import Meeting
    from recipe_core.hooks.registry import Registry
    from recipe_core.settings.job import Job

_OWNER = "recipe check"
_COME, _LINK, _EXAMINE = 60.0, 60.0, 300.0
"""Seconds for a node to connect, for a link measurement, and for a node to examine itself."""
_PROBE_BYTES = 1 << 20
"""Bytes that each node writes into the run folder, as a test."""


def check_nodes(arguments: tuple[str, ...], options: Mapping[str, Any], site: Path | None, out: Path | None) -> int:
    """Check a run on its nodes, and print the table on rank 0; return the exit code.

    Args:
        arguments: name and overrides of the job.
        options: ``nodes``, ``processes_per_node`` and ``device_memory`` of the line.
        site: the site profile.
        out: the run folder.

    Raises:
        ConfigError: the run would not work on these nodes (rank 0 alone; the others return its exit code).
        LaunchError: a node did not connect.
    """
    try:
        return _check_nodes(arguments, options, site, out)
    except RecipeError as error:
        if out is not None:
            _record_ending_for_status(out, error)
        raise


def _check_nodes(arguments: tuple[str, ...], options: Mapping[str, Any], site: Path | None, out: Path | None) -> int:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # we report an absent node ourselves
    meeting: Meeting = load("recipe_core.engine.nodes.meeting:meet", _OWNER)(_COME)
    if meeting.absent:
        if meeting.rank:  # one message is enough
            return ExitCode.MISTAKE
        raise LaunchError(meeting.absent)
    folder, findings = out or RUNS, _NodeFindings()

    def resolve() -> None:
        plugins = load_plugins()
        target = _target_of_nodes(plugins, arguments, meeting.size, options, site)
        job = fully_checked_job(plugins, arguments, target.world_size, out, target)
        findings.requirements = _requirements(job, target, folder)
        findings.identity = identity(job, target.world_size, LIBRARIES, VARIABLES)
        findings.devices = load("recipe_core.engine.nodes.devices:look", _OWNER)(job.train.device, job.engine.spec.name)

    findings.run(resolve)
    sees_run_folder = _sees_run_folder(meeting, folder, findings)
    clock, link = meeting.clock(_EXAMINE), _link(meeting, findings)
    report = NodeReport(
        problems=findings.problems, identity=findings.identity, devices=findings.devices, memory=available_memory(),
        disk=free_space(folder), sees_run_folder=sees_run_folder, clock=clock, link=link,
    )  # fmt: skip
    answers = meeting.exchange("report", asdict(report), _EXAMINE)
    if meeting.rank:
        return meeting.conclude(ExitCode.MISTAKE, _EXAMINE)
    reports = [None if fields is None else NodeReport(**fields) for fields in answers]
    all_problems = problems(meeting.hosts, reports, findings.requirements, folder)
    click.echo(table(meeting.hosts, reports))
    for line in warnings(meeting.hosts, reports):
        click.echo(f"recipe: warning: {line}", err=True)
    meeting.conclude(ExitCode.MISTAKE if all_problems else ExitCode.FINISHED, _EXAMINE)
    if all_problems:
        raise ConfigError.of(all_problems)
    click.echo(f"{meeting.size} node{'s' * (meeting.size > 1)}: no problem found")
    return ExitCode.FINISHED


def _target_of_nodes(
    registry: Registry, arguments: tuple[str, ...], size: int, options: Mapping[str, Any], site: Path | None
) -> Target:
    from recipe_core.launch.launchers.site import Site, read_profile

    nodes, each, device_memory = options["nodes"], options["processes_per_node"], options["device_memory"]
    if nodes not in (None, size):
        raise ConfigError(f"--nodes {nodes}: this was started on {size}, one process on each")
    if each and site is None:  # the devices are measured; the nodes may not have the site profile
        return target_of(size, each, device_memory, Site())
    return choose_target(registry, arguments, read_profile(registry, path=site), size, each, device_memory)


def _record_ending_for_status(out: Path, error: RecipeError) -> None:
    """Record the ending of a job that `recipe submit --check-nodes` started, for `recipe status`."""
    me, job, env = worker(), read_note(out), os.environ
    own_ids = (env.get("SLURM_JOB_ID"), f"{env.get('SLURM_ARRAY_JOB_ID')}_{env.get('SLURM_ARRAY_TASK_ID')}")
    if job is not None and job.job_id in own_ids and (me is None or me.rank == 0):
        kind = kind_of(error.exit_code)
        record_ending(out, Ending(kind=kind, exit_code=error.exit_code, message=str(error), time=time.time()))


class _NodeFindings:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.job: Job | None = None
        self.requirements = Requirements()
        self.identity: dict[str, dict[str, str]] = {}
        self.devices: dict[str, Any] = {}

    def run(self, check: Callable[[], None]) -> None:
        """Run ``check``; an exception becomes a problem of this node, which its report carries."""
        try:
            check()
        except RecipeError as error:
            lines = str(error).splitlines()
            several = len(lines) > 1 and lines[0].endswith("problems:")
            self.problems += [line.removeprefix("  - ") for line in lines[1:]] if several else ["\n".join(lines)]
        except Exception as error:  # a bug, whose traceback is in this node's log
            traceback.print_exc()
            self.problems.append(f"{type(error).__name__}: {error} (a bug: please report the traceback in its log)")


def _requirements(job: Job, target: Target, folder: Path) -> Requirements:
    figures = figures_of(job, target.world_size)
    if figures is None:
        return Requirements(processes=target.processes_per_node)
    return Requirements(
        processes=target.processes_per_node,
        device_memory=0 if job.train.device == "cpu" else figures.memory,
        node_memory=node_memory(job, figures, target),
        disk=max(0, figures.disk - size_of(folder / "checkpoints")),  # a run that continues replaces its older ones
    )


def _sees_run_folder(meeting: Meeting, folder: Path, findings: _NodeFindings) -> bool | None:
    """True if this node sees a file of rank 0 in the run folder; adds a problem if it cannot write there itself.

    None if rank 0 could not write.
    """
    marker, names = Marker(folder), list[str]()
    try:
        if meeting.rank == 0:
            findings.run(lambda: _writing(folder, lambda: names.append(marker.set())))
        name = meeting.exchange("marker", "".join(names), _EXAMINE)[0]
        if not name:
            return None
        sees_run_folder = marker.seen(name)
        if sees_run_folder:
            findings.run(lambda: _writing(folder, lambda: _probe_write(folder)))
        meeting.exchange("seen", True, _EXAMINE)  # before rank 0 removes it
        return sees_run_folder
    finally:
        marker.remove()


def _writing(folder: Path, action: Callable[[], object]) -> None:
    """Run ``action``, which writes into the run folder.

    Raises:
        DiskError: ``action`` raised OSError.
    """
    try:
        action()
    except OSError as error:
        raise disk_error(error, folder, remedy="give another --out") from error


def _probe_write(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _link(meeting: Meeting, findings: _NodeFindings) -> dict[str, Any]:
    """The link to the next node, over the devices; empty if a node has no device, or another kind than the others."""
    kinds = set(meeting.exchange("kind", findings.devices.get("kind", ""), _EXAMINE))
    if len(kinds) > 1 or kinds & {"", None}:
        return {}
    measured: dict[str, Any] = {}
    measure = load("recipe_core.engine.nodes.links:measure", _OWNER)
    findings.run(lambda: measured.update(measure(meeting, findings.devices["kind"], _LINK)))
    return measured
