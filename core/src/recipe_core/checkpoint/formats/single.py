"""Checkpoint formats of one file that ``torch.load(weights_only=True)`` reads, and the simplest one, ``single``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from recipe_core.checkpoint.formats.base import NO_RUN, Format, SaveContext
from recipe_core.checkpoint.io import torch_save
from recipe_core.checkpoint.lazy import lazy, tree_map
from recipe_core.errors import CheckpointError
from recipe_core.hooks.specs import NoSettings


class OneFile(Format):
    """Base class of formats of one file. A subclass defines the file's name and its contents.

    :meth:`encode` and :meth:`decode` rearrange names and plain values and never access a tensor's values, so the same
    code serves tensors in memory and tensors that are read or gathered one at a time.
    """

    @abstractmethod
    def file(self, state: Mapping[str, Any]) -> str:
        """Return the file name for ``state``."""

    @abstractmethod
    def find(self, path: Path) -> Path | None:
        """Return the file at ``path``, which is a folder or the file itself; None if there is none."""

    def encode(self, state: Mapping[str, Any], context: SaveContext) -> dict[str, Any]:
        """Return the contents of the file for ``state``."""
        return dict(state)

    def decode(self, tree: dict[str, Any], path: Path) -> dict[str, Any]:
        """Return the state of ``tree``, which was read from ``path``; CheckpointError if it is not one."""
        return tree

    def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state`` into the empty folder ``path``; a collective, since sharded tensors are gathered.

        Raises:
            DiskError: the disk is full or cannot be written.
        """
        writes = not dist.is_initialized() or dist.get_rank() == 0
        tensors = tree_map(lambda leaf: lazy(leaf) if isinstance(leaf, Tensor) else leaf, state)
        torch_save.write_tree(path / self.file(state) if writes else None, self.encode(tensors, context))

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """Return the whole checkpoint as a state of lazy tensors; ``weights``: without the optimizer.

        Raises:
            CheckpointError: the file is missing or damaged, or holds more than weights.
        """
        file = self.find(path)
        if file is None:
            raise CheckpointError(f"{path}: not a checkpoint of format {self.name}")
        tree = torch_save.read_tree(file)
        if not isinstance(tree, dict):
            raise CheckpointError(f"{file}: expected a dict of tensors and plain values, found {type(tree).__name__}")
        if weights:
            tree.pop("optimizer", None)
        return self.decode(tree, file)

    def detect(self, path: Path) -> bool:
        """True if ``path`` looks like a checkpoint of this format."""
        return self.find(path) is not None

    def files(self, path: Path) -> list[Path]:
        """Return the file of the checkpoint, an archive with checksums."""
        file = self.find(path)
        return [file] if file else []


class Single(OneFile):
    """One file ``checkpoint.pt`` with whole tensors, written by rank 0: easy to share, not for large models."""

    name = "single"

    def __init__(self, config: NoSettings | None = None) -> None:
        """Single has no settings."""

    def file(self, state: Mapping[str, Any]) -> str:
        """Return ``checkpoint.pt``."""
        return "checkpoint.pt"

    def find(self, path: Path) -> Path | None:
        """Return ``checkpoint.pt`` in a folder, or the file itself."""
        file = path / "checkpoint.pt" if path.is_dir() else path
        return file if file.name == "checkpoint.pt" and file.is_file() else None
