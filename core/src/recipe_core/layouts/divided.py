"""The layouts that divide a model into tensor-parallel shards, pipeline stages and data-parallel shards."""

from __future__ import annotations

from torch import nn

from recipe_core.layouts.materialise import materialise
from recipe_core.layouts.parallel import Parallel, Run
from recipe_core.layouts.reducer import Reducer
from recipe_core.layouts.settings import Divided
from recipe_core.layouts.sharded import Sharded, shard_over_data
from recipe_core.layouts.stages import Tie, cut
from recipe_core.layouts.tensor_parallel.plan import divide
from recipe_core.layouts.tensor_parallel.roles import TpGroup


def divided(module: nn.Module, config: Divided, run: Run) -> Parallel:
    """Divide ``module`` as ``config`` says, on the axes of ``run.mesh``; it may be without values (on the meta device).

    Raises:
        ConfigError: the model cannot be divided so.
    """
    if run.mesh is None:
        materialise(module, run.device)
        return Parallel(module)
    tp, reducer = None, None
    shares_out = config.data != "ddp" and run.dp_size > 1
    if config.tp > 1:
        mesh, sequence = run.mesh["tp"], config.sequence_parallel
        tp = divide(module, run.structure.plan, mesh, run.device, sequence, even=shares_out)
    tied = _stage(module, tp, config, run) if config.pp > 1 else []
    names = {tie.here: tie.name for tie in tied if tie.here}
    if shares_out:
        shard_over_data(module, config, run, names)
    else:
        materialise(module, run.device, names=names)
        if run.dp_size > 1:
            reducer = Reducer([p for p in module.parameters() if p.requires_grad], run.mesh["dp"].get_group())
    shared = config if shares_out else None
    if config.pp > 1:
        from recipe_core.layouts.pipeline import Pipeline  # PyTorch's takes two seconds to import

        return Pipeline(module, tied, run, tp, reducer, shared)
    return Sharded(module, tp, reducer, shared)


def _stage(module: nn.Module, tp: TpGroup | None, config: Divided, run: Run) -> list[Tie]:
    """Cut the stage of this rank out of ``module``; the parameters that several stages hold."""
    assert run.mesh is not None  # there are several stages
    tied = cut(module, run.structure, run.mesh["pp"].get_local_rank(), config.pp)
    if tp is not None:
        modules = set(module.modules())
        tp.partial = [(owner, name) for owner, name in tp.partial if owner in modules]
    return tied
