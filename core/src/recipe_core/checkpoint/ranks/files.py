"""The ranks that a checkpoint has files of, and the files named by rank: group them, and report missing ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from recipe_core.checkpoint.match.mismatch import SHOWN
from recipe_core.errors import CheckpointError

Rank = tuple[int, int]
"""Tensor-parallel rank, pipeline rank."""


@dataclass(frozen=True)
class Grid:
    """The ranks that a checkpoint is sharded across, and how."""

    tp: int = 1
    """Tensor-parallel ranks."""
    pp: int = 1
    """Pipeline stages."""
    vocabulary_multiple: int = 1
    """The vocabulary rows of each tensor-parallel rank are zero-padded to a multiple of this; 1: no padding."""
    ties: bool = False
    """True if the files hold tied tensors under their second names too."""

    def ranks(self) -> list[Rank]:
        """All ranks, ordered by stage, then by tensor-parallel rank."""
        return [(tensor, stage) for stage in range(self.pp) for tensor in range(self.tp)]


def padded_rows(rows: int, grid: Grid) -> int:
    """Number of vocabulary rows including padding."""
    unit = grid.vocabulary_multiple * grid.tp
    return -(-rows // unit) * unit if grid.vocabulary_multiple > 1 else rows


def by_rank(paths: Iterable[Path], pattern: re.Pattern[str]) -> dict[Rank, Path]:
    """Group paths by rank. ``pattern`` has the groups ``tp`` and optionally ``pp``; other names are skipped."""
    paths_by_rank = {}
    for path in sorted(paths):
        if match := pattern.fullmatch(path.name):
            groups = match.groupdict()
            paths_by_rank[int(groups["tp"]), int(groups.get("pp") or 0)] = path
    return paths_by_rank


def require_all(paths: Mapping[Rank, Path], where: Path) -> Rank:
    """Return the degrees of tensor and pipeline parallelism.

    Raises:
        CheckpointError: there are no files, or some are missing.
    """
    if not paths:
        raise CheckpointError(f"{where}: no file of any rank is in it")
    tp, pp = (max(rank[axis] for rank in paths) + 1 for axis in (0, 1))
    missing = [(t, p) for p in range(pp) for t in range(tp) if (t, p) not in paths]
    if missing:
        named = ", ".join(f"tensor rank {t} of pipeline rank {p}" for t, p in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        raise CheckpointError(
            f"{where}: {len(paths)} of {tp * pp} files are there (tensor parallel {tp}, pipeline {pp}, by their names)."
            f" Missing: {named}{more}. Get all files of one checkpoint"
        )
    return tp, pp
