"""The core's layouts that shard a model, on PyTorch/XLA devices."""

from __future__ import annotations

from torch import nn

from recipe_core import Parallel, Run
from recipe_core.layouts.settings import Divided
from recipe_xla.mesh import DeviceGrid


def build(module: nn.Module, config: Divided, run: Run) -> Parallel:
    """Shard ``module``, which may be on the meta device: by neuronx-distributed if each device has a process, else by
    annotations.

    Raises:
        ConfigError: the model does not divide by the degrees of ``config``.
    """
    if isinstance(run.mesh, DeviceGrid) and not run.mesh.of_one_process and config.tp > 1:
        from recipe_xla.layouts.tensor_parallel import tensor_parallel

        return tensor_parallel(module, run)
    from recipe_xla.layouts.spmd import shard_with_annotations

    return shard_with_annotations(module, run)
