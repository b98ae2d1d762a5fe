"""Mesh, model and optimizer of a run, from its job. Read this file first."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch

from recipe_core.engine.compiled import keep_compiled, spare_compiler
from recipe_core.engine.fp8 import to_fp8
from recipe_core.engine.machine.probe import compiles
from recipe_core.engine.precision import cast
from recipe_core.engine.protocol import Engine, GraphBackend
from recipe_core.engine.select import spec_of
from recipe_core.errors import PluginError
from recipe_core.files import home
from recipe_core.hooks.kinds import code_of
from recipe_core.layouts.built import as_part_error, build_layout, build_loss, build_model
from recipe_core.layouts.parallel import COUNTED, Loss, Parallel, Run
from recipe_core.layouts.patterns import matching
from recipe_core.layouts.transformed import transform
from recipe_core.ops.fusing import fuse
from recipe_core.settings.job import Job
from recipe_core.settings.mesh import mesh_axes
from recipe_core.train.building.compiling import compile_blocks, compiles_blocks
from recipe_core.train.building.recompute import recompute
from recipe_core.train.optim import Trainable


def build_run(job: Job, engine: Engine, vocabulary: int | None) -> Run:
    """The mesh that the layout asks for, and this rank's place in it.

    Raises:
        ConfigError: the layout's axes do not multiply to the number of processes.
    """
    axes = mesh_axes(job.layout, engine.devices)
    mesh = engine.mesh(axes)
    return Run(
        device=engine.device, mesh=mesh, rank=engine.rank, world_size=engine.devices, local_rank=engine.local_rank,
        dp_rank=mesh["dp"].get_local_rank() if mesh is not None else 0, dp_size=axes["dp"],
        train=job.train, cache=home(), vocabulary=vocabulary, structure=job.structure(),
        local_dp_ranks=axes["dp"] if engine.devices > engine.world_size else 1, engine=engine,
    )  # fmt: skip


def build_parallel(job: Job, run: Run, graphs: GraphBackend) -> tuple[Parallel, Loss]:
    """The model under its layout, and the loss that this process applies to its output."""
    torch.manual_seed(job.train.seed)  # every rank builds the same weights
    divides = job.layout.spec.divides
    with torch.device("meta") if divides and job.model.spec.deferred else nullcontext():
        module, loss = build_model(job.model, job.facts.plain_model)
    compiled = compiles(job.train, sum(parameter.numel() for parameter in module.parameters()), run.device.type)
    if compiled:
        keep_compiled(run.device.type)
    elif not graphs.compiler.always:
        spare_compiler()
    module = cast(module, job.train.precision)
    if job.train.precision == "fp8":
        blocks = run.structure.blocks
        to_fp8(matching(module, blocks).values() if blocks else (), run.device)
    module, structure = transform(job.transforms, module, run.structure)
    run = replace(run, structure=structure)
    # it moves the module itself, to keep tied parameters tied
    own = spec_of(job.engine).layouts.get(job.layout.spec.name)
    if not divides and own is None:
        module = module.to(run.device)
    options = graphs.compile_options() if compiled else {}
    by_blocks = compiled and compiles_blocks(module, run.structure.blocks, run.device.type, options)
    if compiled and not by_blocks:
        module.compile(**options)
    model = build_layout(job.layout, module, run, spec_of(job.engine))
    fuse(options if by_blocks else None)
    if by_blocks:  # after the layout has replaced the blocks
        compile_blocks(model.module, run.structure.blocks, options)
    if job.train.activation_checkpointing:
        # Around compiled blocks: inside, on CUDA, the dropout of attention would draw from generators that
        # torch.compile makes for itself once, and no resumed run would draw the same.
        recompute(model.module, run.structure.blocks, graphs.recompute)
    model.compiled, model.structure = compiled, structure
    model.reductions = {**COUNTED, **job.model.spec.metrics, **job.loss.spec.metrics, "loss": "mean"}
    return model, model.loss(build_loss(job.loss, job.model.spec, loss))


def build_optimizer(job: Job, run: Run, model: Parallel, graphs: GraphBackend) -> torch.optim.Optimizer:
    """The optimizer of the model's parameters."""
    trainable = Trainable(
        named=model.named_parameters(), train=job.train, structure=model.structure or run.structure,
        shard_groups=model.shard_groups, traced=graphs.traced,
    )  # fmt: skip
    part = job.optimizer
    if own := spec_of(job.engine).optimizers.get(part.spec.name):
        part = replace(part, spec=replace(part.spec, build=own))
    with as_part_error(part.spec):
        optimizer: torch.optim.Optimizer = part.build(part.config, trainable)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PluginError(
            f"{code_of(part.spec)} returned {type(optimizer).__name__}; expected a torch.optim.Optimizer of "
            "trainable.named"
        )
    model.attach_optimizer(optimizer)
    return optimizer
