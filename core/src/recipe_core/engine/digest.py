"""A hash of a tensor's bytes, computed on its device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_ROW = 1 << 17
"""64-bit words of a row: few enough for the cache of a CPU."""
_ROWS = 64
"""Rows that are hashed at once on other devices, enough to keep them busy."""
_EXACT = ("cpu", "cuda")
"""Devices whose int64 has 64 bits; tensors of other devices are hashed on the host."""


@torch.no_grad()
def digest(tensor: Tensor) -> Tensor:
    """A 64-bit hash of the bytes of ``tensor``, int64 ``[]`` on its device, without a copy of the whole tensor.

    The 64-bit words are multiplied by odd random numbers and summed modulo 2**64 (multiply-shift hashing,
    Dietzfelbinger and others, 1997). First, the upper half of each word is mixed into the lower: if two words differ
    in the highest bit alone (a sign), their products do, too, and two such differences would cancel.
    """
    if tensor.device.type not in _EXACT:
        tensor = tensor.cpu()
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if data.data_ptr() % 8 or data.storage_offset() % 8:
        data = data.clone()
    whole = data.numel() // 8 * 8
    rest = torch.zeros(8, dtype=torch.uint8, device=data.device)
    rest[: data.numel() - whole] = data[whole:]
    return _folded(torch.cat([_rows(data[:whole].view(torch.int64)), rest.view(torch.int64)]))


def _folded(words: Tensor) -> Tensor:
    while words.numel() > _ROW:
        words = _rows(words)
    return _row_sums(words[None])[0]


def _rows(words: Tensor) -> Tensor:
    count = words.numel() // _ROW
    step = 1 if words.device.type == "cpu" else _ROWS
    matrix = words[: count * _ROW].view(count, _ROW)
    sums = [_row_sums(matrix[start : start + step]) for start in range(0, count, step)]
    return torch.cat([*sums, _row_sums(words[None, count * _ROW :])])


def _row_sums(rows: Tensor) -> Tensor:
    mixed = rows.bitwise_right_shift(32).bitwise_and_(0xFFFF_FFFF).bitwise_xor_(rows)
    return mixed.mul_(_factors(rows.device)[: rows.shape[1]]).sum(1)


@lru_cache(maxsize=8)
def _factors(device: torch.device) -> Tensor:
    # The same on all ranks.
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(1 << 62), 1 << 62, (_ROW,), generator=generator).mul_(2).add_(1).to(device)
