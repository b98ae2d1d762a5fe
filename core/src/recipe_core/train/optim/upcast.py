"""Copies of weights and states in the dtype of the computation, at least fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recipe_core.train.optim.batch import ParameterBatch
from recipe_core.train.optim.rounding import Keys, Rounding, round_
from recipe_core.train.optim.slices import Slice, unflatten_like, views

WEIGHTS, FIRSTS, SECONDS = range(3)
"""Roles of a parameter's tensors: each is rounded with random numbers of its own."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which to compute with tensors of ``dtype``: fp32 for narrower ones."""
    return torch.float32 if dtype.itemsize < 4 else dtype


@dataclass(frozen=True)
class Upcast:
    """The slices of a chunk, in the dtype of the computation."""

    values: list[Tensor]
    """Operands of the computation: the stored tensors where their dtype fits, else copies."""
    stored: list[Tensor]
    """Views of the stored tensors."""
    flat: Tensor | None
    """All copies as one vector; None where there are none."""


class Upcaster:
    """Copies each chunk to the dtype of the computation, and stores the results; used for one optimizer step.

    Args:
        rounding: stochastic rounding to bf16; None: round to nearest.
    """

    def __init__(self, rounding: Rounding | None) -> None:
        self._rounding = rounding
        self._buffers: dict[str, Tensor] = {}
        """By name; every chunk reuses them."""
        self._keys: dict[tuple[int, int, torch.device], Keys] = {}

    def upcast(self, name: str, matrices: Sequence[Tensor], chunk: Sequence[Slice], dtype: torch.dtype) -> Upcast:
        """The slices of ``chunk`` in ``dtype``; copies are valid until the next call with this ``name``."""
        stored = views(matrices, chunk)
        if stored[0].dtype == dtype:
            return Upcast(stored, stored, None)
        flat, values = self._buffer(name, stored, dtype)
        torch._foreach_copy_(values, stored)
        return Upcast(values, stored, flat)

    def store_weights(self, upcast: Upcast, batch: ParameterBatch, chunk: Sequence[Slice]) -> None:
        """Store the updated weights; ``upcast`` is the result of :meth:`upcast` for ``batch.updated``."""
        if batch.masters:
            torch._foreach_copy_(views(batch.weights, chunk), upcast.values)
        else:
            self.store(upcast, batch, chunk, WEIGHTS)

    def store(self, upcast: Upcast, batch: ParameterBatch, chunk: Sequence[Slice], role: int) -> None:
        """Round the results into the stored tensors; overwrites ``upcast``.

        Args:
            upcast: the result of :meth:`upcast` for ``chunk``.
            batch: the parameters.
            chunk: slices of their tensors.
            role: of the tensors: FIRSTS, for example.
        """
        if upcast.flat is None:
            return
        if self._rounding is None or upcast.stored[0].dtype != torch.bfloat16:
            torch._foreach_copy_(upcast.stored, upcast.values)
            return
        device = upcast.flat.device
        keys = self._keys.get((batch.step, role, device))
        if keys is None:
            keys = self._rounding.keys(batch.step, role, device)
            self._keys[batch.step, role, device] = keys
        bits, outputs = self._buffer("bits", upcast.stored, torch.int32)
        for part, out in zip(chunk, outputs, strict=True):
            self._rounding.bits_(out, batch.parameters[part.tensor], part.rows, part.columns, keys)
        rounded = unflatten_like(round_(upcast.flat, bits), upcast.stored)
        torch._foreach_copy_([tensor.view(torch.int16) for tensor in upcast.stored], rounded)

    def _buffer(self, name: str, like: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        """Uninitialised memory of ``dtype``: as one vector, and as views with the shapes of ``like``."""
        size = sum(tensor.numel() for tensor in like)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size or buffer.dtype != dtype or buffer.device != like[0].device:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype, device=like[0].device)
        return buffer[:size], unflatten_like(buffer, like)
