"""The base class of checkpoint formats. A format moves bytes; it decides nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from recipe_core.checkpoint.ranks.join import Grid
    from recipe_core.hooks.train import Train
    from recipe_core.layouts.parallel import Samples
    from recipe_core.settings.schedule import Rate


@dataclass(frozen=True, kw_only=True)
class SaveContext:
    """Facts about the run that a checkpoint belongs to, for formats that store more than the state."""

    group: ProcessGroup | None = None
    """The process group for collectives while saving and loading; None: the default group. A save beside training has
    a group of its own."""
    train: Train | None = None
    """The training settings that the optimizer state belongs to; None where they are not known."""
    rate: Rate | None = None
    """The learning rate of each step; None where it is not known."""
    samples: Samples | None = None
    """The run's dataset; None outside a run."""
    writer: Callable[[Path], None] | None = None
    """Writes the files of a checkpoint in the format's place, for a trainer that has its own writer."""


NO_RUN = SaveContext()
"""The context of a state that belongs to no run."""


class Format(ABC):
    """Base class of checkpoint formats. All ranks call every method together, except :meth:`open`."""

    name = ""
    background = False
    """True if :meth:`save` may run in a thread beside training: its collectives use the context's group alone, and it
    reads each :class:`recipe_core.checkpoint.lazy.Lazy` at most once, since training may have changed it after that."""
    strict_dtypes = True
    """True if a loaded tensor must have the dtype of the run; else it is converted."""
    grid: Grid | None = None
    """The ranks that it writes files for; None for a format of whole tensors."""

    @abstractmethod
    def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state`` into the empty folder ``path``, one tensor after the other: a
        :class:`recipe_core.checkpoint.lazy.Lazy` is read when it is written."""

    def load(self, path: Path, state: dict[str, Any], group: ProcessGroup | None = None) -> None:
        """Fill ``state`` from ``path``: tensors in place, plain values replaced.

        ``group`` is the process group for collectives; None: the default group.

        Raises:
            CheckpointError: the checkpoint is damaged or does not fit ``state``, or the format is for conversion only,
                as every format that does not override this.
        """
        raise CheckpointError(f"{path}: {self.name} is for conversion: recipe convert")

    @abstractmethod
    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """Return the whole checkpoint as a state of lazy tensors; called by one process.

        With ``weights`` the optimizer is left out, and damage to it does not matter.
        """

    @abstractmethod
    def detect(self, path: Path) -> bool:
        """True if ``path`` is of this format, by its file names."""

    def files(self, path: Path) -> list[Path]:
        """The files whose own check sums cover the tensors; empty where tensors are checked one by one."""
        return [path]
