"""The checkpoint format ``xser``: files of torch_xla's serialization, one or one for each tensor-parallel rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from recipe_core import NO_RUN, CheckpointError, Format, SaveContext
from recipe_core.checkpoint.ranks.files import Grid, Rank, by_rank, require_all
from recipe_xla.checkpoint import rank_files, xser_file
from recipe_xla.settings import XserSettings

ENDING = ".xser"
_RANK = re.compile(r"tp_rank_(?P<tp>\d+)_pp_rank_(?P<pp>\d+)\.xser")


class Xser(Format):
    """``checkpoint.xser`` and its tensors, or ``tp_rank_<T>_pp_rank_<P>.xser`` for each rank.

    The tree is a dict of ``model``, ``optimizer`` and ``scheduler``, as ``state_dict()`` returns them. Files of other
    programs may have any name: give the path of the file, and the format.
    """

    name = "xser"

    def __init__(self, config: XserSettings | None = None) -> None:
        self._config = config or XserSettings()
        self.grid: Grid = Grid(tp=self._config.tp, pp=self._config.pp, ties=True)

    def save(self, path: Path, state: Mapping[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state``, as :func:`recipe_core.checkpoint.ranks.join.split_by_rank` gives it, into the empty folder
        ``path``.

        Raises:
            DiskError: the disk is full or cannot be written.
        """
        progress, epoch = state.get("progress", {}), int(state.get("epoch") or 0)
        tasks = [
            partial(self._write, path, rank, state["ranks"][rank], progress, epoch, context)
            for rank in self.grid.ranks()
        ]
        rank_files.at_once(tasks, self._config.writers)

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """The states of the ranks, with tensors that are read when they are needed.

        Raises:
            CheckpointError: a file is missing or damaged, of another step or degree, or names a forbidden global.
        """
        files = self._files(path)
        trees = {rank: rank_files.read(file) for rank, file in files.items()}
        positions = {files[rank]: rank_files.progress_of(tree, None) for rank, tree in trees.items()}
        rank_files.require_one_step({file: progress["step"] for file, progress in positions.items()})
        ranks = {rank: rank_files.decoded(tree, files[rank], weights=weights) for rank, tree in trees.items()}
        first = next(iter(trees.values()))
        return {"ranks": ranks, "progress": next(iter(positions.values())), **rank_files.epoch_of(first)}

    def detect(self, path: Path) -> bool:
        """True if ``path`` looks like a checkpoint of this format."""
        return path.suffix == ENDING or any(path.glob(f"*{ENDING}"))

    def files(self, path: Path) -> list[Path]:
        """The files to read; archives among them have their own checksums."""
        trees = self._files(path).values()
        return [*trees, *(tensor for file in trees for tensor in sorted(xser_file.tensors_of(file).glob("*.pt")))]

    def _write(
        self,
        folder: Path,
        rank: Rank,
        state: Mapping[str, Any],
        progress: Mapping[str, Any],
        epoch: int,
        context: SaveContext,
    ) -> None:
        whole = self.grid.tp == self.grid.pp == 1
        name = "checkpoint" if whole else f"tp_rank_{rank[0]:02}_pp_rank_{rank[1]:02}"
        tree = rank_files.encoded(state, progress, epoch, context, self.name)
        rank_files.write(folder / f"{name}{ENDING}", tree, xser=True)

    def _files(self, path: Path) -> dict[Rank, Path]:
        if path.is_file():
            if not xser_file.is_xser(path):
                raise CheckpointError(
                    f"{path}: {xser_file.tensors_of(path).name} is missing, the folder of its tensors"
                )
            if not _RANK.fullmatch(path.name):
                return {(0, 0): path}
            path = path.parent
        files = [file for file in path.glob(f"*{ENDING}") if file.is_file()] if path.is_dir() else []
        if len(files) == 1 and not _RANK.fullmatch(files[0].name):
            return {(0, 0): files[0]}
        by_number = by_rank(files, _RANK)
        require_all(by_number, path)
        return by_number
