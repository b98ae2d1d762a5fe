"""The command ``recipe check``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_core.cli.arguments import RecipeCommand, recipe_arguments, split
from recipe_core.cli.options import LocalPath, debug_option, join, load_plugins, processes_option, run_out_option
from recipe_core.errors import ExitCode, RecipeError

if TYPE_CHECKING:
    from recipe_core.cli.check.target import Target
    from recipe_core.hooks.registry import Registry


target_options = join(
    click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the target."),
    click.option(
        "--processes-per-node",
        type=click.IntRange(min=1),
        metavar="M",
        help="Processes on each node (default: the devices of a node in the site profile).",
    ),
    click.option(
        "--device-memory",
        type=click.FloatRange(min=0, min_open=True),
        metavar="GB",
        help="Memory of one device of the target (default: the site profile's).",
    ),
    click.option(
        "--site",
        type=LocalPath(),
        metavar="FILE",
        help="Site profile of the target (default: $RECIPE_SITE, or site.yaml in the folder of settings).",
    ),
)
"""The options that describe the machines of a run."""


@click.command(cls=RecipeCommand)
@recipe_arguments
@processes_option
@target_options
@click.option("--on-nodes", is_flag=True, help="Started once on each node (srun): compare what the nodes see.")
@run_out_option
@debug_option
def check(
    arguments: tuple[str, ...],
    processes: int | None,
    nodes: int | None,
    processes_per_node: int | None,
    device_memory: float | None,
    site: Path | None,
    on_nodes: bool,
    out: Path | str | None,
) -> int:
    """Find what is wrong with a run, and what it needs.

    All problems of settings, files and processes at once, and an estimate of memory, work and disk. With --nodes,
    --processes-per-node, --device-memory or --site, the run is meant for other machines: what does not fit there is
    a problem. What this machine cannot hold is a note.

    With --on-nodes, the line is started once on each node of a job (srun --ntasks-per-node=1), and prints a table
    of what they see: devices, memory, disk, data, packages, clocks, and how fast they reach each other.
    """
    if isinstance(out, str):
        from recipe_core.checkpoint.remote.record import working_folder
        from recipe_core.files.objects import ObjectPath

        out = working_folder(str(ObjectPath.parse(out)))  # whose disk has to hold the checkpoints, too
    elsewhere = any(option is not None for option in (nodes, processes_per_node, device_memory, site))
    if elsewhere and processes is not None:
        raise click.UsageError("--processes is for this machine; give --nodes and --processes-per-node instead")
    if on_nodes:
        if processes is not None:
            raise click.UsageError("--processes: --on-nodes is one process on each node; give --processes-per-node")
        from recipe_core.cli.commands.nodes import check_nodes

        target_settings = {"nodes": nodes, "processes_per_node": processes_per_node, "device_memory": device_memory}
        return check_nodes(arguments, target_settings, site, out)
    plugins = load_plugins()
    target = None
    if elsewhere:
        from recipe_core.cli.check.line import choose_target
        from recipe_core.launch.launchers.site import read_profile

        profile = read_profile(plugins, path=site)
        target = choose_target(plugins, arguments, profile, nodes, processes_per_node, device_memory)
    _check(plugins, arguments, processes, target, out)
    return ExitCode.FINISHED


def _check(
    registry: Registry, arguments: tuple[str, ...], processes: int | None, target: Target | None, out: Path | None
) -> None:
    from recipe_core.cli.check.line import fully_checked_job
    from recipe_core.cli.show import needs
    from recipe_core.settings.job import resolve
    from recipe_core.train.start.destination import RUNS

    world_size, folder = target.world_size if target else processes or 0, out or RUNS
    try:
        job = fully_checked_job(registry, arguments, world_size, out, target)
    except RecipeError:
        with contextlib.suppress(RecipeError):  # the settings resolve: print what they need
            job = resolve(registry, *split(arguments))
            text = needs(job, world_size or job.processes, folder, passed=False, target=target)
            click.echo(text + "\n")
        raise
    click.echo(needs(job, world_size or job.processes, folder, target=target))
