"""Matrices sharded by rows, of which the last shard may be smaller: vocabularies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from recipe_core.layouts.tensor_parallel.collectives import AllGather

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class RowShard(NamedTuple):
    """The rows of a matrix that this rank holds."""

    group: ProcessGroup
    first: int
    most: int
    """Rows of every rank but the last, which may have fewer."""
    whole: int


def row_shard(matrix: DTensor) -> RowShard:
    """The shard of a matrix that a tensor plan has cut by rows, as ``torch.chunk`` cuts."""
    mesh, whole = matrix.device_mesh, matrix.shape[0]
    most = -(-whole // mesh.size())
    return RowShard(mesh.get_group(), mesh.get_local_rank() * most, most, whole)


def gather_logits(logits: Tensor, rows: RowShard) -> Tensor:
    """The logits ``[..., rows of this rank]`` of all ranks, concatenated; all ranks continue with the same."""
    padded = F.pad(logits, (0, rows.most - logits.shape[-1]))  # the collective needs equal sizes
    whole: Tensor = AllGather.apply(padded, rows.group, -1, False)  # type: ignore[no-untyped-call]
    return whole[..., : rows.whole]
