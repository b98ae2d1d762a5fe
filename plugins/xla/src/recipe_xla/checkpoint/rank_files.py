"""The file of one rank in checkpoints of PyTorch/XLA: a tree, in one piece or with its tensors beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recipe_core import CheckpointError, Lazy, SaveContext
from recipe_core.checkpoint.io import torch_save
from recipe_core.checkpoint.ranks.optimizer import indexed_state, scheduled
from recipe_xla.checkpoint import xser_file

OURS = "recipe"
"""A further entry of the files that we write: the exact position in schedule and data. Others pass it over."""
_INERT = ("argparse.Namespace", "numpy.", "collections.")
"""Beginnings of what scripts keep beside weights; nothing of it is run."""


def read(path: Path) -> dict[str, Any]:
    """A file of either kind.

    Raises:
        CheckpointError: it is missing, damaged, no dict, or names a forbidden global.
    """
    tree = xser_file.read_xser(path) if xser_file.is_xser(path) else read_plain(path)
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path}: expected a dict of tensors and plain values, found {type(tree).__name__}")
    return tree


def read_plain(path: Path) -> Any:
    """A file of torch.save, which may hold the settings of a script beside weights."""
    return torch_save.read_tree(path, lambda name: name.startswith(_INERT))


def write(path: Path, tree: Mapping[str, Any], *, xser: bool, info: bool = False) -> None:
    """Write a file, with its tensors beside it where ``xser`` says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if xser:
        xser_file.write_xser(path, tree, info=info)
    else:
        torch_save.write_tree(path, tree)


def at_once(tasks: Iterable[Callable[[], None]], workers: int) -> None:
    """Do so many of the tasks at once; the first failure is raised when all that began have ended."""
    if workers == 1:
        for task in tasks:
            task()
        return
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(task) for task in tasks]:
            done.result()


def encoded(
    rank: Mapping[str, Any], progress: Mapping[str, Any], epoch: int, context: SaveContext, what: str
) -> dict[str, Any]:
    """The tree of a rank in files that hold everything in one: ``model``, ``optimizer``, ``scheduler``.

    Raises:
        CheckpointError: there is an optimizer, and its settings are not known.
    """
    step = int(progress.get("step") or 0)
    tree: dict[str, Any] = {"model": dict(rank["model"])}
    if "optimizer" in rank:
        tree["optimizer"] = indexed_state(rank["optimizer"], rank["model"], context, step, what)
        if context.train is not None:
            tree["scheduler"] = scheduled(context, step)
    return {**tree, "step": step, **position(progress, epoch)}


def position(progress: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """The position of a run under the names that scripts of neuronx-distributed use, and ours."""
    return {"global_step": int(progress.get("step") or 0), "epoch": epoch, OURS: {"progress": dict(progress)}}


def epoch_of(tree: Mapping[str, Any]) -> dict[str, int]:
    """The part ``epoch`` of a state: full rounds over the data, where a script counts them."""
    epoch = tree.get("epoch")
    return {"epoch": epoch} if isinstance(epoch, int) else {}


def decoded(tree: Mapping[str, Any], path: Path, *, weights: bool) -> dict[str, Any]:
    """The state of a rank from such a tree; a bare state dict is a model.

    Raises:
        CheckpointError: it holds no model.
    """
    model = tree.get("model", tree.get("state_dict"))
    if model is None and tree and all(isinstance(value, Lazy) for value in tree.values()):
        model = tree
    if not isinstance(model, Mapping):
        there = ", ".join(map(str, list(tree)[:8])) or "nothing"
        raise CheckpointError(f"{path}: it has no entry 'model'; expected a dict of model and optimizer, found {there}")
    found: dict[str, Any] = {"model": dict(model)}
    if not weights and isinstance(tree.get("optimizer"), Mapping):
        found["indexed"] = tree["optimizer"]
    return found


def progress_of(tree: Mapping[str, Any], named: int | None) -> dict[str, Any]:
    """The position in schedule and data: ours where we wrote it, else the step, by the file's words or by ``named``."""
    ours = tree.get(OURS)
    if isinstance(ours, Mapping) and isinstance(ours.get("progress"), Mapping):
        return dict(ours["progress"])
    counts = (tree.get(key) for key in ("step", "total_steps", "global_step"))
    scheduler = tree.get("scheduler")
    last = scheduler.get("last_epoch") if isinstance(scheduler, Mapping) else None
    step = next((count for count in (*counts, last, named) if isinstance(count, int)), 0)
    return {"step": step, "consumed_samples": None}


def require_one_step(steps: Mapping[Path, Any]) -> None:
    """Refuse files whose steps differ.

    Raises:
        CheckpointError: they are of several checkpoints.
    """
    first, *others = steps
    for path in others:
        if steps[path] != steps[first]:
            raise CheckpointError(
                f"{path} is of step {steps[path]}, and {first} of step {steps[first]}: files of two checkpoints are "
                "mixed"
            )
