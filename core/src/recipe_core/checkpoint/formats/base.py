"""Base class of checkpoint formats. A format reads and writes bytes; it makes no decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.checkpoint.lazy import entries, fill_state, has_entries
from recipe_core.checkpoint.match.mismatch import mismatch
from recipe_core.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from recipe_core.checkpoint.ranks.files import Grid
    from recipe_core.hooks.train import Train
    from recipe_core.layouts.parallel import Samples
    from recipe_core.settings.schedule import Rate


@dataclass(frozen=True, kw_only=True)
class SaveContext:
    """Facts about the run that a checkpoint belongs to, for formats that store more than the state."""

    group: ProcessGroup | None = None
    """Process group for collectives while saving and loading; None: the default group. A background save has its own
    group."""
    train: Train | None = None
    """Training settings of the optimizer state; None if unknown."""
    rate: Rate | None = None
    """Learning rate of each step; None if unknown."""
    samples: Samples | None = None
    """Dataset of the run; None outside a run."""
    writer: Callable[[Path], None] | None = None
    """Writes the files of a checkpoint instead of the format, for a trainer with its own writer."""


RUN_PARTS = ("model", "optimizer", "progress")
"""Parts of a state that a run resumes from."""
CALLBACKS = "callbacks"
"""The part of a state with the states of callbacks by name. A checkpoint and a run may have different callbacks."""
FOR_SCRIPTS = ("files", "epoch")
"""Parts of a state that no run reads."""

NO_RUN = SaveContext()
"""Context of a state that belongs to no run."""


class Format(ABC):
    """Base class of checkpoint formats. :meth:`save` is a collective; every rank calls :meth:`load`."""

    name = ""
    background = False
    """True if :meth:`save` may run in a background thread during training: it uses only the context's group for
    collectives, and reads each :class:`recipe_core.checkpoint.lazy.Lazy` at most once, since training may change it
    afterwards."""
    strict_dtypes = True
    """True if a loaded tensor must have the run's dtype; else it is converted."""
    grid: Grid | None = None
    """Ranks that it writes files for; None for a format of whole tensors."""

    @abstractmethod
    def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state`` into the empty folder ``path``, one tensor at a time: a
        :class:`recipe_core.checkpoint.lazy.Lazy` is read when it is written."""

    def load(self, path: Path, state: dict[str, Any], group: ProcessGroup | None = None) -> None:
        """Fill ``state`` from ``path``: tensors in place, plain values replaced. Each rank reads its own shards; if
        reading fails, ``state`` may be partially filled.

        ``group`` is the process group for collectives of formats that need some; None means the default group.

        Raises:
            CheckpointError: the checkpoint is damaged, or holds other names, shapes or dtypes, or the format is for
                conversion only.
        """
        if self.grid is not None:
            raise CheckpointError(f"{path}: {self.name} is for conversion: recipe convert")
        saved = {part: value for part, value in self.open(path).items() if part in state or part not in FOR_SCRIPTS}
        keep_common_callbacks(saved, state)
        if lacking := [part for part in RUN_PARTS if has_entries(state.get(part, {})) and part not in saved]:
            raise CheckpointError(
                f"{path}: it holds no {' and no '.join(lacking)}, so that no run can go on from it; a new run can "
                f"begin with its weights: train.init_from={path}"
            )
        if text := mismatch(dict(entries(saved)), dict(entries(state)), dtypes=self.strict_dtypes):
            raise CheckpointError(f"{path}: {text}")
        fill_state(state, saved)

    @abstractmethod
    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """Return the whole checkpoint as a state of lazy tensors; called by one process.

        With ``weights`` the optimizer is omitted, and damage to it is ignored.
        """

    @abstractmethod
    def detect(self, path: Path) -> bool:
        """True if the file names at ``path`` are those of this format."""

    def files(self, path: Path) -> list[Path]:
        """Return the files whose own checksums cover the tensors; empty if each tensor is checked separately."""
        return [path]


def keep_common_callbacks(saved: dict[str, Any], state: dict[str, Any]) -> None:
    """Leave in ``saved`` and ``state`` only states of callbacks that both have, since a run may add or drop some."""
    here, there = state.get(CALLBACKS, {}), saved.get(CALLBACKS, {})
    for tree in (saved, state):
        common = {name: value for name, value in tree.pop(CALLBACKS, {}).items() if name in here and name in there}
        if common:
            tree[CALLBACKS] = common
