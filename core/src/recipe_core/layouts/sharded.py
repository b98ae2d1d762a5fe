"""Weights, gradients and optimizer states sharded across the data-parallel ranks by PyTorch's FSDP2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from recipe_core.engine.memory import pins_memory, return_gathered_memory
from recipe_core.engine.precision import mixes_widths
from recipe_core.layouts.materialise import materialise
from recipe_core.layouts.parallel import Batch, Micro, Parallel, Run
from recipe_core.layouts.patterns import matching
from recipe_core.layouts.reduction.reducer import Reducer
from recipe_core.layouts.settings import Divided
from recipe_core.layouts.tensor_parallel.plan import partial_gradients
from recipe_core.layouts.tensor_parallel.roles import TpGroup


def shard_over_data(module: nn.Module, config: Divided, run: Run, names: Mapping[str, str]) -> None:
    """Give ``module`` its values, block by block, and keep this rank's shard of each block.

    A block that shares a parameter with another part of the model is not gathered by itself, but with everything
    outside the blocks: in two units, FSDP would make two parameters of one and train them apart. ``names``: see
    :func:`recipe_core.layouts.materialise.materialise`.

    ``zero1`` is FSDP that gathers the weights once per step and reduces the gradients once: between the first forward
    and the last backward every rank holds all of them; the optimizer works on this rank's shard of both.

    With ``bf16_mixed``, blocks are gathered in bf16 (on a CPU in fp32), the type of their products: half the bytes, and
    autocast makes no copies. The weights of their norms are rounded, too. Gradients are summed in fp32.
    """
    assert run.mesh is not None  # there are several data-parallel ranks
    return_gathered_memory(run.device)
    offload = CPUOffloadPolicy(pin_memory=pins_memory(run.device)) if config.cpu_offload else OffloadPolicy()
    narrow = run.train.precision == "bf16_mixed" and mixes_widths(run.device.type)
    gathered = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    blocks = matching(module, run.structure.blocks).values()
    for unit in [*(block for block in blocks if not _shares_parameters(module, block)), module]:
        materialise(module, run.device, part=unit, names=names)
        fully_shard(
            unit, mesh=run.mesh["dp"], reshard_after_forward=config.data == "fsdp" and unit is not module,
            mp_policy=gathered if narrow and unit is not module else MixedPrecisionPolicy(), offload_policy=offload,
        )  # fmt: skip


def _shares_parameters(module: nn.Module, block: nn.Module) -> bool:
    inside, own = set(block.modules()), set(block.parameters())
    return any(
        parameter in own
        for owner in module.modules()
        if owner not in inside
        for parameter in owner.parameters(recurse=False)
    )


class Sharded(Parallel):
    """A model of which this process holds a shard.

    Args:
        module: the shard, with names of the whole model.
        tp: its tensor-parallel group, if layers are sharded.
        reducer: averages gradients over data-parallel ranks that hold copies.
        config: the settings of FSDP, if ``module`` is an FSDPModule.
    """

    def __init__(
        self, module: nn.Module, tp: TpGroup | None, reducer: Reducer | None = None, config: Divided | None = None
    ) -> None:
        super().__init__(module)
        self.tp, self.reducer, self.config = tp, reducer, config

    @property
    def forwards_together(self) -> bool:
        """See :class:`Parallel`; FSDP gathers weights."""
        return self.config is not None

    def _reduce(self, last: bool) -> AbstractContextManager[None]:
        if self.reducer is not None and last:
            self.reducer.arm()
        if self.config is not None and isinstance(self.module, FSDPModule):
            each = self.config.data == "fsdp" and self.config.reduce_each_micro_batch
            self.module.set_requires_gradient_sync(last or each)
            self.module.set_reshard_after_backward(last or self.config.data == "fsdp")
        return nullcontext()

    def discard_step(self) -> None:
        """See :class:`Parallel`."""
        super().discard_step()
        self._reshard()

    def complete_gradients(self) -> None:
        """See :class:`Parallel`."""
        if self.reducer is not None:
            self.reducer.finish()
        if self.tp is not None:
            _all_reduce(partial_gradients(self.tp), self.tp.group)

    @torch.no_grad()
    def evaluate(self, batch: Batch, micro: Micro) -> dict[str, Tensor]:
        """See :class:`Parallel`; afterwards each rank holds its shard again, as the optimizer and checkpoints
        expect."""
        try:
            return super().evaluate(batch, micro)
        finally:
            self._reshard()

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """See :class:`Parallel`; sequences may have any length."""
        sequence = self.tp.sequence if self.tp is not None else False
        with super().inference() as module:
            try:
                if self.tp is not None:
                    self.tp.sequence = False
                yield module
            finally:
                if self.tp is not None:
                    self.tp.sequence = sequence
                self._reshard()

    @contextmanager
    def gathered(self) -> Iterator[dict[str, Tensor]]:
        """See :class:`Parallel`; ``zero1`` gathers all weights, as in each step."""
        if self.config is None or self.config.data != "zero1":
            yield {}
            return
        try:
            for module in self.module.modules():
                if isinstance(module, FSDPModule):
                    module.unshard()
            yield dict(self.named_parameters())
        finally:
            self._reshard()

    def _reshard(self) -> None:
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _all_reduce(gradients: list[Tensor], group: dist.ProcessGroup) -> None:
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):  # in the same order on all ranks
        some = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = torch.cat([gradient.flatten() for gradient in some])
        dist.all_reduce(flat, group=group)
        for gradient, total in zip(some, flat.split([g.numel() for g in some]), strict=True):
            gradient.copy_(total.view_as(gradient))
