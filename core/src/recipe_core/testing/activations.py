"""Memory that autograd keeps after a forward pass, for comparison with the facts of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from recipe_core.engine.precision import cast
from recipe_core.hooks.train import Precision
from recipe_core.layouts.patterns import matching
from recipe_core.train.building.recompute import recompute


def kept_bytes(
    module: nn.Module, call: Callable[[nn.Module], Any], precision: Precision, blocks: str = "", logits: int = 0
) -> int:
    """Return the bytes that ``call(module)`` keeps for backward on the CPU, at their peak during backward.

    Each storage counts once. Parameters, autocast's copies of them, ids and logits do not count.

    Args:
        module: in training mode.
        call: runs its forward.
        precision: the module is cast as in a run, and runs under autocast even if the processor has no bf16.
        blocks: pattern of the blocks that are recomputed, as in ``Model.blocks``; "" recomputes none. The activations
            inside the last block count, since they exist together with the inputs of the others.
        logits: size of the vocabulary.
    """
    module = cast(module, precision)
    storages = _KeptStorages(module, logits)
    with (
        torch.autograd.graph.saved_tensors_hooks(storages.keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16_mixed"),
    ):
        if not blocks:
            output = call(module)
        else:
            recompute(module, blocks)
            last = list(matching(module, blocks).values())[-1]
            inputs: list[Any] = []
            last.register_forward_pre_hook(lambda _, args: inputs.extend(args))
            output = call(module)
            inside = type(last).forward(last, *inputs)  # as backward recomputes it
            del inside
    total = sum(storages.sizes.values())
    del output  # until here the storages are alive, so that no address is reused
    return total


class _KeptStorages:
    """Sizes of the storages that autograd keeps, by address."""

    def __init__(self, module: nn.Module, logits: int) -> None:
        self.sizes: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._logits = logits
        self._weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
        shapes = {tuple(p.shape) for p in module.parameters()}
        self._copies = shapes | {shape[::-1] for shape in shapes}  # matrix products take them transposed

    def keep(self, tensor: Tensor) -> Tensor:
        """Record a tensor that autograd keeps."""
        storage = tensor.untyped_storage()
        weight = storage.data_ptr() in self._weights or tuple(tensor.shape) in self._copies
        values = tensor.is_floating_point() or tensor.dtype == torch.bool
        if values and not weight and self._logits not in tensor.shape:
            self._alive.append(tensor)
            self.sizes[storage.data_ptr()] = storage.nbytes()
        return tensor
