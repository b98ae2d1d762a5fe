"""``recipe check --on-nodes``: one process on each node looks at it, all tell each other, and rank 0 judges."""

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

from recipe_core.cli.check.line import checked, choose_target
from recipe_core.cli.check.machine import available_memory, free_space, size_of
from recipe_core.cli.check.node_table import Need, View, problems, table, warnings
from recipe_core.cli.check.target import figures_of, node_memory, target_of
from recipe_core.engine.agreement import LIBRARIES, VARIABLES, Marker
from recipe_core.errors import ConfigError, ExitCode, LaunchError, RecipeError
from recipe_core.files import disk_error
from recipe_core.hooks.target import load
from recipe_core.launch.ending import Ending, kind_of, record_ending
from recipe_core.launch.identity import identity
from recipe_core.launch.launchers.submitted import read_note
from recipe_core.launch.worker import worker
from recipe_core.train.start.destination import RUNS

if TYPE_CHECKING:
    from recipe_core.cli.check.target import Target
    from recipe_core.engine.nodes.meeting import Meeting
    from recipe_core.hooks.registry import Registry
    from recipe_core.settings.job import Job

_OWNER = "recipe check"
_COME, _LINK, _LOOK = 60.0, 60.0, 300.0
"""Seconds for a node to come, for a link to be measured, and for a node to look at itself."""
_TRIED = 1 << 20
"""Bytes that each node writes into the run folder, to see that it can."""


def check_nodes(
    registry: Callable[[], Registry],
    words: tuple[str, ...],
    options: Mapping[str, Any],
    site: Path | None,
    out: Path | None,
) -> int:
    """Check a run on the nodes that it is to have, and print the table on rank 0; return the exit code.

    Args:
        registry: loads the plugins.
        words: name and overrides of the job.
        options: ``nodes``, ``processes_per_node`` and ``device_memory`` of the line.
        site: the site profile.
        out: the run folder.

    Raises:
        ConfigError: the run would not work on these nodes (rank 0 alone; the others return its exit code).
        LaunchError: a node has not come.
    """
    try:
        return _check_nodes(registry, words, options, site, out)
    except RecipeError as error:
        if out is not None:
            _tell_status(out, error)
        raise


def _check_nodes(
    registry: Callable[[], Registry],
    words: tuple[str, ...],
    options: Mapping[str, Any],
    site: Path | None,
    out: Path | None,
) -> int:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a node that is not there, ours is the message
    meeting: Meeting = load("recipe_core.engine.nodes.meeting:meet", _OWNER)(_COME)
    if meeting.absent:
        if meeting.rank:  # one message is enough
            return ExitCode.MISTAKE
        raise LaunchError(meeting.absent)
    folder, found = out or RUNS, _Findings()

    def resolve() -> None:
        plugins = registry()
        target = _target(plugins, words, meeting.size, options, site)
        job = checked(plugins, words, target.world_size, out, target)
        found.need = _need(job, target, folder)
        found.identity = identity(job, target.world_size, LIBRARIES, VARIABLES)
        found.devices = load("recipe_core.engine.nodes.devices:look", _OWNER)(job.train.device, job.engine.spec.name)

    found.note(resolve)
    sees = _sees(meeting, folder, found)
    clock, link = meeting.clock(_LOOK), _link(meeting, found)
    view = View(
        problems=found.problems, identity=found.identity, devices=found.devices, memory=available_memory(),
        disk=free_space(folder), sees=sees, clock=clock, link=link,
    )  # fmt: skip
    told = meeting.exchange("view", asdict(view), _LOOK)
    if meeting.rank:
        return meeting.conclude(ExitCode.MISTAKE, _LOOK)
    views = [None if one is None else View(**one) for one in told]
    wrong = problems(meeting.hosts, views, found.need, folder)
    click.echo(table(meeting.hosts, views))
    for line in warnings(meeting.hosts, views):
        click.echo(f"recipe: warning: {line}", err=True)
    meeting.conclude(ExitCode.MISTAKE if wrong else ExitCode.FINISHED, _LOOK)
    if wrong:
        raise ConfigError.of(wrong)
    click.echo(f"{meeting.size} node{'s' * (meeting.size > 1)}: no problem found")
    return ExitCode.FINISHED


def _target(
    registry: Registry, words: tuple[str, ...], size: int, options: Mapping[str, Any], site: Path | None
) -> Target:
    """The nodes that are here; how many processes each is to have, the line, the site profile or the recipe says."""
    from recipe_core.launch.launchers.site import Site, read_profile

    nodes, each, device_memory = options["nodes"], options["processes_per_node"], options["device_memory"]
    if nodes not in (None, size):
        raise ConfigError(f"--nodes {nodes}: this was started on {size}, one process on each")
    if each and site is None:  # the memory is looked at: no profile, which the nodes may not have, need tell of it
        return target_of(size, each, device_memory, Site())
    return choose_target(registry, words, read_profile(registry, path=site), size, each, device_memory)


def _tell_status(out: Path, error: RecipeError) -> None:
    """Note the end of a job that `recipe submit` began with this check, for `recipe status`."""
    me, job, env = worker(), read_note(out), os.environ
    mine = (env.get("SLURM_JOB_ID"), f"{env.get('SLURM_ARRAY_JOB_ID')}_{env.get('SLURM_ARRAY_TASK_ID')}")
    if job is not None and job.job_id in mine and (me is None or me.rank == 0):
        kind = kind_of(error.exit_code)
        record_ending(out, Ending(kind=kind, exit_code=error.exit_code, message=str(error), time=time.time()))


class _Findings:
    """What this node has found so far."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.job: Job | None = None
        self.need = Need()
        self.identity: dict[str, dict[str, str]] = {}
        self.devices: dict[str, Any] = {}

    def note(self, look: Callable[[], None]) -> None:
        """Run ``look``; what it raises is a problem of this node, and the others hear of it."""
        try:
            look()
        except RecipeError as error:
            lines = str(error).splitlines()
            several = len(lines) > 1 and lines[0].endswith("problems:")
            self.problems += [line.removeprefix("  - ") for line in lines[1:]] if several else ["\n".join(lines)]
        except Exception as error:  # a bug, whose traceback is in this node's log
            traceback.print_exc()
            self.problems.append(f"{type(error).__name__}: {error} (a bug: please report the traceback in its log)")


def _need(job: Job, target: Target, folder: Path) -> Need:
    figures = figures_of(job, target.world_size)
    if figures is None:
        return Need(processes=target.processes_per_node)
    return Need(
        processes=target.processes_per_node,
        device_memory=0 if job.train.device == "cpu" else figures.memory,
        node_memory=node_memory(job, figures, target),
        disk=max(0, figures.disk - size_of(folder / "checkpoints")),  # a run that continues replaces its older ones
    )


def _sees(meeting: Meeting, folder: Path, found: _Findings) -> bool | None:
    """True if this node sees what rank 0 writes into the run folder; notes whether it can write there itself."""
    marker, names = Marker(folder), list[str]()
    try:
        if meeting.rank == 0:
            found.note(lambda: _in(folder, lambda: names.append(marker.set())))
        name = meeting.exchange("marker", "".join(names), _LOOK)[0]
        if not name:
            return None
        sees = marker.seen(name)
        if sees:
            found.note(lambda: _in(folder, lambda: _write(folder)))
        meeting.exchange("seen", True, _LOOK)  # before rank 0 removes it
        return sees
    finally:
        marker.remove()


def _in(folder: Path, action: Callable[[], object]) -> None:
    """Run ``action``, which writes into the run folder.

    Raises:
        DiskError: it cannot.
    """
    try:
        action()
    except OSError as error:
        raise disk_error(error, folder, way_out="give another --out") from error


def _write(folder: Path) -> None:
    """Write a file that has no name, and is gone when it is closed."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_TRIED))
        file.flush()
        os.fsync(file.fileno())


def _link(meeting: Meeting, found: _Findings) -> dict[str, Any]:
    """The link to the next node, over the devices that all have; empty where a node has none, or another kind."""
    kinds = set(meeting.exchange("kind", found.devices.get("kind", ""), _LOOK))
    if len(kinds) > 1 or kinds & {"", None}:
        return {}
    measured: dict[str, Any] = {}
    measure = load("recipe_core.engine.nodes.links:measure", _OWNER)
    found.note(lambda: measured.update(measure(meeting, found.devices["kind"], _LINK)))
    return measured
