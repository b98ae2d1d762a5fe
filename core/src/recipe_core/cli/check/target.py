"""The target of a run on other machines: what fits there, and which groups of ranks cross nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipe_core.engine.machine.probe import compiles, on_cuda
from recipe_core.hooks.specs.loop import optimizer_facts
from recipe_core.train.start.check.estimate import Estimate, estimate
from recipe_core.train.start.check.machine import scaled

if TYPE_CHECKING:
    from recipe_core.launch.launchers.site import Site
    from recipe_core.settings.job import Job


@dataclass(frozen=True, kw_only=True)
class Target:
    """Nodes of one kind. Sizes are bytes; 0: not known."""

    nodes: int = 1
    processes_per_node: int = 1
    device_memory: int = 0
    """Of one device; each process has its own."""
    node_memory: int = 0
    disk: int = 0
    """Free space for run folders."""

    @property
    def world_size(self) -> int:
        """Number of processes on all nodes."""
        return self.nodes * self.processes_per_node


def target_of(nodes: int, processes_per_node: int, device_memory_gb: float | None, site: Site) -> Target:
    """Return the target of a command line; the site profile gives what the line does not."""
    memory = site.device_memory_gb if device_memory_gb is None else device_memory_gb
    return Target(
        nodes=nodes,
        processes_per_node=processes_per_node,
        device_memory=round(memory * 1e9),
        node_memory=round(site.node_memory_gb * 1e9),
        disk=round(site.disk_gb * 1e9),
    )


def figures_of(job: Job, world_size: int) -> Estimate | None:
    """Return the estimate of a run on ``world_size`` processes; None if the model or the dataset has no facts."""
    model, data = job.facts.model, job.facts.data
    if model is None or data is None:
        return None
    division, data_ranks = job.division(world_size)
    cuda = on_cuda(job.train.device)
    return estimate(
        model, data, job.train, division, data_ranks, optimizer_facts(job.optimizer, job.train, model, job.callbacks),
        byte_masks=cuda, compiled=cuda and compiles(job.train, model.parameters, "cuda"),
    )  # fmt: skip


def node_memory(job: Job, figures: Estimate, target: Target) -> int:
    """Return the bytes of main memory that the processes of a node need: offloaded values; on the CPU, all."""
    each = figures.host + (figures.memory if job.train.device == "cpu" else 0)
    return each * target.processes_per_node


def fit_problems(job: Job, target: Target) -> Iterator[str]:
    """Yield a problem for each known size of the target that the run exceeds."""
    figures = figures_of(job, target.world_size)
    if figures is None:
        return
    on_device = 0 if job.train.device == "cpu" else figures.memory
    if target.device_memory and on_device > target.device_memory:
        yield (
            f"memory: one process needs {scaled(on_device, 'B')}, and a device of the target has "
            f"{scaled(target.device_memory, 'B')}; lower train.micro_batch, set train.activation_checkpointing=true, "
            "or divide the model (layout=fsdp, layout=tp)"
        )
    on_node = node_memory(job, figures, target)
    if target.node_memory and on_node > target.node_memory:
        yield (
            f"memory: the {target.processes_per_node} processes of a node need {scaled(on_node, 'B')} of its main "
            f"memory, and it has {scaled(target.node_memory, 'B')}; start fewer on a node (--processes-per-node)"
        )
    if target.disk and figures.disk > target.disk:
        yield (
            f"disk: {figures.checkpoints} checkpoints of {scaled(figures.checkpoint, 'B')} exist at once, "
            f"{scaled(figures.disk, 'B')} in all, and {scaled(target.disk, 'B')} are free on the target; lower "
            "train.keep, or raise disk_gb of the site profile if there is more"
        )


def warnings(job: Job, target: Target) -> Iterator[str]:
    """Yield a warning if tensor-parallel groups have ranks on several nodes, which is slow."""
    axes = job.axes(target.world_size)
    degree, each = axes.get("tp", 1), target.processes_per_node
    if target.nodes == 1 or degree == 1:
        return
    crossing = sum(_crosses(group, each) for group in _groups(axes, "tp"))
    if crossing:
        fitting = max(size for size in range(1, degree + 1) if degree % size == 0 and each % size == 0)
        yield (
            f"layout.tp: {crossing} of {target.world_size // degree} tensor-parallel groups of {degree} cross nodes "
            f"of {each} processes: every layer waits for the network. Better: layout.tp={fitting}, or "
            f"--processes-per-node {degree}"
        )


def _groups(axes: dict[str, int], name: str) -> Iterator[list[int]]:
    """Ranks of each group along the axis ``name`` of a mesh whose last axis varies fastest."""
    names, sizes = list(axes), list(axes.values())
    index = names.index(name)
    stride, size = math.prod(sizes[index + 1 :]), sizes[index]
    for rank in range(math.prod(sizes)):
        if rank // stride % size == 0:
            yield [rank + number * stride for number in range(size)]


def _crosses(ranks: list[int], processes_per_node: int) -> bool:
    return len({rank // processes_per_node for rank in ranks}) > 1
