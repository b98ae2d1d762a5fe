"""The core's layouts that divide a model, on PyTorch/XLA devices."""

from __future__ import annotations

from torch import nn

from recipe_core import Parallel, Run
from recipe_core.layouts.settings import Divided
from recipe_xla.mesh import Grid


def build(module: nn.Module, config: Divided, run: Run) -> Parallel:
    """Divide ``module``, with or without values, as ``config`` says: by neuronx-distributed where each device has a
    process, else by annotations.

    Raises:
        ConfigError: the model cannot be divided so.
    """
    if isinstance(run.mesh, Grid) and not run.mesh.of_one_process and config.tp > 1:
        from recipe_xla.layouts.tensor_parallel import teamed

        return teamed(module, run)
    from recipe_xla.layouts.spmd import annotated

    return annotated(module, run)
