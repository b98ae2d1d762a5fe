"""Memory that autograd keeps of a forward pass, to compare with the facts of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from recipe_core.engine.precision import cast
from recipe_core.hooks.train import Precision
from recipe_core.layouts.patterns import matching
from recipe_core.train.recompute import recompute


def kept_bytes(
    module: nn.Module, call: Callable[[nn.Module], Any], precision: Precision, blocks: str = "", logits: int = 0
) -> int:
    """Bytes that ``call(module)`` keeps for backward on the CPU, at the moment of backward when they are most.

    Each storage counts once. Parameters and autocast's copies of them are left out, so are ids, and so are logits.

    Args:
        module: in training mode.
        call: runs its forward.
        precision: the module is cast as a run does it, and runs under autocast whatever the processor can.
        blocks: pattern of the blocks that are recomputed, as in ``Model.blocks``; "" keeps everything. The last block's
            inside counts then, for it is there while the others' inputs are.
        logits: size of the vocabulary.
    """
    module = cast(module, precision)
    seen = _Seen(module, logits)
    with (
        torch.autograd.graph.saved_tensors_hooks(seen.keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16_mixed"),
    ):
        if not blocks:
            output = call(module)
        else:
            recompute(module, blocks)
            last = list(matching(module, blocks).values())[-1]
            given: list[Any] = []
            last.register_forward_pre_hook(lambda _, args: given.extend(args))
            output = call(module)
            inside = type(last).forward(last, *given)  # as backward repeats it
            del inside
    found = sum(seen.sizes.values())
    del output  # until here the storages are alive, so that no address stands for two of them
    return found


class _Seen:
    """The storages that were kept, with their sizes."""

    def __init__(self, module: nn.Module, logits: int) -> None:
        self.sizes: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._logits = logits
        self._weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
        shapes = {tuple(p.shape) for p in module.parameters()}
        self._copies = shapes | {shape[::-1] for shape in shapes}  # which products take transposed

    def keep(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd keeps."""
        storage = tensor.untyped_storage()
        weight = storage.data_ptr() in self._weights or tuple(tensor.shape) in self._copies
        values = tensor.is_floating_point() or tensor.dtype == torch.bool
        if values and not weight and self._logits not in tensor.shape:
            self._alive.append(tensor)
            self.sizes[storage.data_ptr()] = storage.nbytes()
        return tensor
