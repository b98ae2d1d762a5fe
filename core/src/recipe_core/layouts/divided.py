"""The layouts that shard a model: tensor parallelism, pipeline stages, and FSDP or ZeRO-1 over data-parallel ranks."""

from __future__ import annotations

from torch import nn

from recipe_core.layouts.materialise import materialise
from recipe_core.layouts.parallel import Parallel, Run
from recipe_core.layouts.pipeline.stages import TiedParameter, cut_stage
from recipe_core.layouts.reduction.reducer import Reducer
from recipe_core.layouts.settings import Divided
from recipe_core.layouts.sharded import Sharded, shard_over_data
from recipe_core.layouts.tensor_parallel.plan import divide
from recipe_core.layouts.tensor_parallel.roles import TpGroup


def divided(module: nn.Module, config: Divided, run: Run) -> Parallel:
    """Shard ``module``, which may be on the meta device, over the axes of ``run.mesh``.

    Raises:
        ConfigError: the model does not divide by the degrees of ``config``.
    """
    if run.mesh is None:
        materialise(module, run.device)
        return Parallel(module)
    tp, reducer = None, None
    shards_data = config.data != "ddp" and run.dp_size > 1
    if config.tp > 1:
        mesh, sequence = run.mesh["tp"], config.sequence_parallel
        tp = divide(module, run.structure.plan, mesh, run.device, sequence, even=shards_data)
    tied = _stage(module, tp, config, run) if config.pp > 1 else []
    names = {tie.local_name: tie.name for tie in tied if tie.local_name}
    if shards_data:
        shard_over_data(module, config, run, names)
    else:
        materialise(module, run.device, names=names)
        if run.dp_size > 1:
            reducer = Reducer([p for p in module.parameters() if p.requires_grad], run.mesh["dp"].get_group())
    data_sharding = config if shards_data else None
    if config.pp > 1:
        from recipe_core.layouts.pipeline.pipeline import Pipeline  # PyTorch's takes two seconds to import

        return Pipeline(module, tied, run, tp, reducer, data_sharding)
    return Sharded(module, tp, reducer, data_sharding)


def _stage(module: nn.Module, tp: TpGroup | None, config: Divided, run: Run) -> list[TiedParameter]:
    assert run.mesh is not None  # there are several stages
    tied = cut_stage(module, run.structure, run.mesh["pp"].get_local_rank(), config.pp)
    if tp is not None:
        modules = set(module.modules())
        tp.partial = [(owner, name) for owner, name in tp.partial if owner in modules]
    return tied
