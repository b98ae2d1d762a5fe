"""Tensors in the width that is computed in, fp32 or more, whatever width they are kept in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recipe_core.train.optim.batch import ParameterBatch
from recipe_core.train.optim.pieces import Piece, Scratch, cut, views
from recipe_core.train.optim.rounding import Keys, Rounding, round_

WEIGHTS, FIRSTS, SECONDS = range(3)
"""Which of a parameter's tensors is rounded: each has random numbers of its own."""


def computing(dtype: torch.dtype) -> torch.dtype:
    """The type of the computation for tensors of ``dtype``."""
    return torch.float32 if dtype.itemsize < 4 else dtype


@dataclass(frozen=True)
class Wide:
    """The pieces of a chunk of some tensors."""

    values: list[Tensor]
    """Where to compute: the tensors' own memory where they are wide enough, else copies."""
    places: list[Tensor]
    """The tensors' own memory."""
    flat: Tensor | None
    """All copies as one vector."""


class Widener:
    """Makes the copies of each chunk, and stores what became of them; lives for one step of the optimizer.

    Args:
        rounding: how bf16 is rounded to; None: to the nearest.
    """

    def __init__(self, rounding: Rounding | None) -> None:
        self._rounding = rounding
        self._scratch = Scratch()
        self._keys: dict[tuple[int, int, torch.device], Keys] = {}

    def widen(self, name: str, matrices: Sequence[Tensor], chunk: Sequence[Piece], dtype: torch.dtype) -> Wide:
        """The pieces of ``chunk`` in ``dtype``; copies are valid until something else of this ``name`` is widened."""
        places = views(matrices, chunk)
        if places[0].dtype == dtype:
            return Wide(places, places, None)
        flat, values = self._scratch.take(name, places, dtype)
        torch._foreach_copy_(values, places)
        return Wide(values, places, flat)

    def store_weights(self, wide: Wide, batch: ParameterBatch, chunk: Sequence[Piece]) -> None:
        """Put the updated weights in their place, ``wide`` being what :meth:`widen` gave of ``batch.updated``."""
        if batch.masters:
            torch._foreach_copy_(views(batch.weights, chunk), wide.values)
        else:
            self.store(wide, batch, chunk, WEIGHTS)

    def store(self, wide: Wide, batch: ParameterBatch, chunk: Sequence[Piece], what: int) -> None:
        """Round what was computed into the tensors' own memory; ``wide`` is used up.

        Args:
            wide: what :meth:`widen` gave for ``chunk``.
            batch: whose tensors they are.
            chunk: pieces of them.
            what: which of the parameters' tensors: FIRSTS, for example.
        """
        if wide.flat is None:
            return
        if self._rounding is None or wide.places[0].dtype != torch.bfloat16:
            torch._foreach_copy_(wide.places, wide.values)
            return
        device = wide.flat.device
        keys = self._keys.get((batch.step, what, device))
        if keys is None:
            keys = self._rounding.keys(batch.step, what, device)
            self._keys[batch.step, what, device] = keys
        bits, parts = self._scratch.take("bits", wide.places, torch.int32)
        for piece, part in zip(chunk, parts, strict=True):
            self._rounding.bits_(part, batch.parameters[piece.tensor], piece.rows, piece.columns, keys)
        numbers = round_(wide.flat, bits)
        torch._foreach_copy_([place.view(torch.int16) for place in wide.places], cut(numbers, wide.places))
