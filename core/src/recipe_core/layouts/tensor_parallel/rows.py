"""Matrices that are cut by rows into parts of which the last may be smaller: the words of a vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from recipe_core.layouts.tensor_parallel.collectives import Gather


class Rows(NamedTuple):
    """Which rows of a whole matrix a rank has."""

    group: ProcessGroup
    first: int
    most: int
    """Rows of the ranks that have most: all but the last."""
    whole: int


def rows_of(matrix: DTensor) -> Rows:
    """Of a matrix that a tensor plan has cut by rows, as ``torch.chunk`` cuts."""
    mesh, whole = matrix.device_mesh, matrix.shape[0]
    most = -(-whole // mesh.size())
    return Rows(mesh.get_group(), mesh.get_local_rank() * most, most, whole)


def joined(logits: Tensor, rows: Rows) -> Tensor:
    """The logits ``[..., rows of this rank]`` of all ranks, one after the other; all of them go on with the same."""
    padded = F.pad(logits, (0, rows.most - logits.shape[-1]))  # since parts are exchanged that are of one size
    whole: Tensor = Gather.apply(padded, rows.group, -1, False)  # type: ignore[no-untyped-call]
    return whole[..., : rows.whole]
