"""Stochastic rounding of fp32 to bf16, by random numbers that depend only on the seed, the step and the element.

bf16 has 8 significant bits, and rounding to nearest loses an update below half of the last one. Rounding up with the
probability of the remainder preserves the expectation. The 16 random bits of the element in row r and column c of a
parameter are the upper half of ``A[r] * T[c] + B[r]`` modulo 2**32 (multiply-shift hashing, Dietzfelbinger and others,
1997), where A and B are drawn for every step and row, and T is a fixed table. Any two elements are rounded
independently, and so is one element in any two steps. Nothing depends on the device, on how the tensor is sharded or
sliced, or on the state of a generator.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recipe_core.engine.memory import pins_memory
from recipe_core.layouts.reduction.reducer import local_shard
from recipe_core.train.optim.shards import positions
from recipe_core.train.seeds import mix, mix_array

Keys = tuple[Tensor, Tensor]
"""A and B, int32 ``[rows of all parameters, 1]``."""


class Rounding:
    """Random bits for rounding the local shards of parameters.

    Args:
        seed: of the run.
        names: of the parameters; they seed the random numbers.
    """

    def __init__(self, seed: int, names: Mapping[nn.Parameter, str]) -> None:
        self._seed = seed
        self._starts: dict[nn.Parameter, int] = {}
        self._columns: dict[nn.Parameter, Tensor] = {}
        rows, start = [], 0
        for parameter, name in names.items():
            numbers, columns = positions(parameter)
            self._starts[parameter] = start
            self._columns[parameter] = _table(columns).to(local_shard(parameter).device)
            rows.append(mix_array(_key(name), numbers.numpy()))
            start += len(numbers)
        self._rows = np.concatenate(rows) if rows else np.zeros(0, dtype=np.uint64)

    def keys(self, step: int, role: int, device: torch.device) -> Keys:
        """The keys of a step's random numbers, for the tensors in ``role``: weights, first or second moments."""
        drawn = mix_array(mix(mix(self._seed, role), step), self._rows).view(np.int32).reshape(-1, 2)
        both = torch.from_numpy(np.ascontiguousarray(drawn.T))
        if pins_memory(device):
            both = both.pin_memory()
        both = both.to(device, non_blocking=True)[:, :, None]
        return both[0] | 1, both[1]

    def bits_(self, out: Tensor, parameter: nn.Parameter, rows: slice, columns: slice, keys: Keys) -> None:
        """Fill int32 ``out [rows, columns]`` with numbers whose upper halves are random.

        ``rows`` and ``columns`` index the local shard of ``parameter``.
        """
        start = self._starts[parameter]
        where = slice(start + rows.start, start + rows.stop)
        torch.mul(self._columns[parameter][columns], keys[0][where], out=out)
        out.add_(keys[1][where])


def round_(values: Tensor, bits: Tensor) -> Tensor:
    """Round fp32 ``values`` to bf16 in place, away from zero with the probability of the discarded fraction.

    Args:
        values: fp32; overwritten.
        bits: int32 of the same shape; the upper half of each is random. Overwritten.

    Returns:
        int32: the bits of bf16 values. Values that bf16 represents, infinities among them, do not change; a NaN stays a
            NaN.
    """
    # One NaN for all: adding to that of CUDA (0x7fffffff) would overflow.
    values.nan_to_num_(nan=math.nan, posinf=math.inf, neginf=-math.inf)
    numbers = values.view(torch.int32)
    return numbers.add_(bits.bitwise_right_shift_(16).bitwise_and_(0xFFFF)).bitwise_right_shift_(16)


def _key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1


def _table(columns: Tensor) -> Tensor:
    # T, int32 [columns]
    halves: NDArray[np.int32] = mix_array(0, columns.numpy()).view(np.int32).reshape(-1, 2)
    return torch.from_numpy(np.ascontiguousarray(halves[:, 1]))
