"""The job and the target of a command line, after all checks that are possible before a run."""

from __future__ import annotations

from pathlib import Path

from recipe_core.cli.arguments import split
from recipe_core.cli.check.target import Target, fit_problems, target_of
from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import Registry
from recipe_core.launch.launchers.site import Profile
from recipe_core.settings.job import Job, resolve
from recipe_core.train.start.check import begin_problems, checked_job, data_problems
from recipe_core.train.start.destination import RUNS


def choose_target(
    registry: Registry,
    arguments: tuple[str, ...],
    profile: Profile,
    nodes: int | None,
    processes_per_node: int | None,
    device_memory_gb: float | None = None,
) -> Target:
    """Return the machines that options, site profile and recipe describe together.

    If neither an option nor the profile sets the processes of a node, the recipe's are divided among the nodes.

    Raises:
        ConfigError: the processes do not divide among the nodes.
    """
    each = processes_per_node or profile.site.devices_per_node
    if not each:
        total, count = resolve(registry, *split(arguments)).processes, nodes or 1
        if total % count:
            raise ConfigError(
                f"--nodes {count}: the recipe's {total} processes do not divide among them; give --processes-per-node"
            )
        each = total // count
    return target_of(nodes or 1, each, device_memory_gb, profile.site)


def fully_checked_job(
    registry: Registry, arguments: tuple[str, ...], world_size: int, out: Path | None, target: Target | None
) -> Job:
    """Return the job of a command line after all checks, for this machine or for the target.

    Raises:
        RecipeError: there are problems; one error names all problems of its kind.
    """
    job = checked_job(registry, *split(arguments), world_size, out or RUNS, disk=False, here=target is None)
    problems = [
        *begin_problems(job, world_size or job.processes, out),
        *data_problems(job),
        *(fit_problems(job, target) if target else ()),
    ]
    if problems:
        raise ConfigError.of(problems)
    return job
