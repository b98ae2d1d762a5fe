"""The checkpoint format ``nxd``: neuronx-distributed's folders, of both layouts, with and without xser.

The newer layout has ``<tag>/model`` and ``<tag>/optim`` with files ``dp_rank_<D>_tp_rank_<T>_pp_rank_<P>.pt`` (states
that ZeRO-1 shards have a file for each data-parallel rank), ``scheduler.pt``, ``user_content.pt``, and the markers
``checkpoint`` and ``done``. The older one has ``tp_rank_<T>_pp_rank_<P>/checkpoint.pt``, or, with xser,
``tp_rank_<T>_pp_rank_<P>`` itself, with everything in one tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from recipe_core import NO_RUN, CheckpointError, Format, SaveContext
from recipe_core.checkpoint.ranks.files import Grid, Rank, by_rank, require_all
from recipe_core.checkpoint.ranks.optimizer import indexed_state, scheduler_state_dict
from recipe_xla.checkpoint import rank_files
from recipe_xla.checkpoint.zero1 import is_shared, whole_states
from recipe_xla.settings import NxdSettings

_NEW = re.compile(r"dp_rank_(?P<dp>\d+)_tp_rank_(?P<tp>\d+)_pp_rank_(?P<pp>\d+)\.pt")
_FULL = re.compile(r"full_tp_rank_(?P<tp>\d+)_pp_rank_(?P<pp>\d+)\.pt")
_OLD = re.compile(r"tp_rank_(?P<tp>\d+)_pp_rank_(?P<pp>\d+)")
_INSIDE = "checkpoint.pt"
_BEGUN, _DONE = "checkpoint", "done"
_NUMBER = re.compile(r"(\d+)$")


class Nxd(Format):
    """A folder that neuronx-distributed loads, with a file for each tensor-parallel and pipeline rank."""

    name = "nxd"

    def __init__(self, config: NxdSettings | None = None) -> None:
        self._config = config or NxdSettings()
        self.grid: Grid = Grid(tp=self._config.tp, pp=self._config.pp, ties=True)

    def save(self, path: Path, state: Mapping[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state``, as :func:`recipe_core.checkpoint.ranks.join.split_by_rank` gives it, into the empty folder
        ``path``.

        Raises:
            DiskError: the disk is full or cannot be written.
        """
        ranks, progress, epoch = state["ranks"], dict(state.get("progress", {})), int(state.get("epoch") or 0)
        write = self._write_new if self._config.layout == "new" else self._write_old
        folder = path / f"step_{int(progress.get('step') or 0)}" if self._config.layout == "new" else path
        tasks = [partial(write, folder, rank, ranks[rank], progress, epoch, context) for rank in self.grid.ranks()]
        rank_files.at_once(tasks, self._config.writers)
        if self._config.layout == "new":
            self._close(folder, ranks[0, 0], progress, epoch, context)

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """The states of the ranks, with tensors that are read when they are needed.

        Raises:
            CheckpointError: a file is missing or damaged, of another step or degree, or names a forbidden global.
        """
        folder = _tag(path)
        if (folder / "model").is_dir():
            return _open_new(folder, weights)
        return _open_old(folder, weights)

    def detect(self, path: Path) -> bool:
        """True if ``path`` looks like a checkpoint of this format."""
        return any(
            any(path.glob(pattern)) for pattern in ("model/dp_rank_*", "*/model/dp_rank_*", "tp_rank_*_pp_rank_*")
        )

    def files(self, path: Path) -> list[Path]:
        """The files to read; archives among them have their own checksums."""
        paths = (p for p in _tag(path).rglob("*") if p.suffix == ".pt" or _OLD.fullmatch(p.name))
        return sorted(p for p in paths if p.is_file())

    def _write_new(
        self,
        folder: Path,
        rank: Rank,
        state: Mapping[str, Any],
        progress: Mapping[str, Any],
        epoch: int,
        context: SaveContext,
    ) -> None:
        name = f"dp_rank_00_tp_rank_{rank[0]:02}_pp_rank_{rank[1]:02}.pt"
        xser = self._config.xser
        rank_files.write(folder / "model" / name, state["model"], xser=xser, info=xser)
        if "optimizer" in state:
            step = int(progress.get("step") or 0)
            tree = indexed_state(state["optimizer"], state["model"], context, step, self.name)
            rank_files.write(folder / "optim" / name, tree, xser=xser, info=xser)

    def _write_old(
        self,
        folder: Path,
        rank: Rank,
        state: Mapping[str, Any],
        progress: Mapping[str, Any],
        epoch: int,
        context: SaveContext,
    ) -> None:
        path = folder / f"tp_rank_{rank[0]:02}_pp_rank_{rank[1]:02}"
        tree = rank_files.encoded(state, progress, epoch, context, self.name)
        rank_files.write(path if self._config.xser else path / _INSIDE, tree, xser=self._config.xser)

    def _close(
        self, folder: Path, first: Mapping[str, Any], progress: Mapping[str, Any], epoch: int, context: SaveContext
    ) -> None:
        # The file ``done`` marks a complete checkpoint: it is the last.
        step = int(progress.get("step") or 0)
        if "optimizer" in first and context.train is not None:
            rank_files.write(folder / "scheduler.pt", scheduler_state_dict(context, step), xser=False)
        content = {"total_steps": step, **rank_files.position(progress, epoch)}
        rank_files.write(folder / "user_content.pt", content, xser=False)
        for marker in (_BEGUN, _DONE):
            (folder / marker).write_text("1", encoding="utf-8")


def _tag(path: Path) -> Path:
    # ``path`` itself, or the newest complete checkpoint in it.
    if path.is_file():
        path = path.parent if path.name != _INSIDE else path.parent.parent
    if path.name in ("model", "optim"):
        path = path.parent
    if (path / "model").is_dir() or any(path.glob("tp_rank_*_pp_rank_*")):
        _require_done(path)
        return path
    tags = sorted((p for p in path.iterdir() if (p / "model").is_dir()), key=_numbers) if path.is_dir() else []
    whole = [tag for tag in tags if _is_done(tag)]
    if tags and not whole:
        _require_done(tags[-1])
    return _newest(whole, path) if whole else path


def _newest(tags: list[Path], where: Path) -> Path:
    """The newest of several, sorted by number.

    neuronx-distributed takes the one whose ``done`` was written last. Copies may lose times, and numbers may start
    again, so that neither overrides the other.

    Raises:
        CheckpointError: they disagree.
    """
    marked = [tag for tag in tags if (tag / _DONE).is_file()]
    latest = max(marked, key=lambda tag: ((tag / _DONE).stat().st_mtime_ns, _numbers(tag)), default=tags[-1])
    if latest != tags[-1] and _numbers(tags[-1]):
        raise CheckpointError(
            f"{where}: which of its checkpoints is the newest? By the time of its file {_DONE!r}, which "
            f"neuronx-distributed goes by, {latest.name}; by its number, {tags[-1].name}. Name one: "
            f"{where / latest.name} or {where / tags[-1].name}"
        )
    return latest


def _numbers(tag: Path) -> tuple[int, ...]:
    # Tags are sorted by them: 1 and 20 for ``epoch_1_step_20``.
    return tuple(int(number) for number in re.findall(r"\d+", tag.name))


def _step_named(tag: Path) -> int | None:
    match = _NUMBER.search(tag.name)
    return int(match[1]) if match else None


def _is_done(tag: Path) -> bool:
    # Older releases write no markers.
    return (tag / _DONE).is_file() or not (tag / _BEGUN).is_file()


def _require_done(tag: Path) -> None:
    if not _is_done(tag):
        raise CheckpointError(
            f"{tag}: it has no file {_DONE!r}, so that it was not written to its end; take an earlier one"
        )


def _open_new(folder: Path, weights: bool) -> dict[str, Any]:
    models = by_rank((folder / "model").glob("dp_rank_*.pt"), _NEW)
    require_all(models, folder / "model")
    ranks = {rank: {"model": rank_files.read(path)} for rank, path in models.items()}
    steps: dict[Path, Any] = {}
    if not weights and (folder / "optim").is_dir():
        for rank, paths in _optimizers(folder / "optim").items():
            if rank not in ranks:
                raise CheckpointError(f"{paths[0]}: it is of a rank that has no file in {folder / 'model'}")
            trees = [rank_files.read(path) for path in paths]
            tree = whole_states(trees, paths) if is_shared(trees[0]) else trees[0]
            ranks[rank]["indexed"] = tree
            steps[paths[0]] = _steps_of(tree)
        if missing := [rank for rank in ranks if "indexed" not in ranks[rank]]:
            named = ", ".join(f"tensor rank {t} of pipeline rank {p}" for t, p in missing)
            raise CheckpointError(f"{folder / 'optim'}: missing: {named}. Get all files of one checkpoint")
        rank_files.require_one_step(steps)
    content = folder / "user_content.pt"
    tree = rank_files.read_plain(content) if content.is_file() else {}
    user_content = tree if isinstance(tree, dict) else {}
    progress = rank_files.progress_of(user_content, _step_named(folder))
    return {"ranks": ranks, "progress": progress, **rank_files.epoch_of(user_content)}


def _optimizers(folder: Path) -> dict[Rank, list[Path]]:
    by_dp: dict[Rank, dict[int, Path]] = {}
    for path in sorted(folder.glob("*.pt")):
        if match := _NEW.fullmatch(path.name) or _FULL.fullmatch(path.name):
            rank = int(match["tp"]), int(match["pp"])
            by_dp.setdefault(rank, {})[int(match.groupdict().get("dp") or 0)] = path
    for rank, paths in by_dp.items():
        if missing := [number for number in range(max(paths) + 1) if number not in paths]:
            raise CheckpointError(
                f"{folder}: of tensor rank {rank[0]}, pipeline rank {rank[1]}, the data-parallel ranks "
                f"{', '.join(map(str, missing))} are missing, over which ZeRO-1 shares the states out"
            )
    return {rank: [paths[number] for number in sorted(paths)] for rank, paths in by_dp.items()}


def _steps_of(tree: Mapping[str, Any]) -> Any:
    groups = tree.get("param_groups")
    return groups[0].get("step") if isinstance(groups, list) and groups and isinstance(groups[0], Mapping) else None


def _open_old(folder: Path, weights: bool) -> dict[str, Any]:
    paths = (p / _INSIDE if (p / _INSIDE).is_file() else p for p in folder.glob("tp_rank_*_pp_rank_*"))
    files = {p: p.parent if p.name == _INSIDE else p for p in paths if p.is_file()}
    by_number = by_rank(files.values(), _OLD)
    require_all(by_number, folder)
    at = {where: path for path, where in files.items()}
    trees = {rank: rank_files.read(at[where]) for rank, where in by_number.items()}
    positions = {at[by_number[rank]]: rank_files.progress_of(tree, _step_named(folder)) for rank, tree in trees.items()}
    rank_files.require_one_step({path: progress["step"] for path, progress in positions.items()})
    ranks = {rank: rank_files.decoded(tree, at[by_number[rank]], weights=weights) for rank, tree in trees.items()}
    first = next(iter(trees.values()))
    return {"ranks": ranks, "progress": next(iter(positions.values())), **rank_files.epoch_of(first)}
