"""The file of one rank in checkpoints of PyTorch/XLA: a tree, with its tensors inside or in files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recipe_core import CheckpointError, Lazy, SaveContext
from recipe_core.checkpoint.io import torch_save
from recipe_core.checkpoint.ranks.optimizer import indexed_state, scheduler_state_dict
from recipe_xla.checkpoint import xser_file

OURS = "recipe"
"""An additional entry in files that we write: the exact position in schedule and data. Other readers ignore it."""
_ALLOWED = ("argparse.Namespace", "numpy.", "collections.")
"""Prefixes of globals that scripts save with weights; none is executed."""


def read(path: Path) -> dict[str, Any]:
    """Read a file of either kind.

    Raises:
        CheckpointError: it is missing, damaged, no dict, or names a forbidden global.
    """
    tree = xser_file.read_xser(path) if xser_file.is_xser(path) else read_plain(path)
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path}: expected a dict of tensors and plain values, found {type(tree).__name__}")
    return tree


def read_plain(path: Path) -> Any:
    """Read a file of torch.save, which may hold the settings of a script, too."""
    return torch_save.read_tree(path, lambda name: name.startswith(_ALLOWED))


def write(path: Path, tree: Mapping[str, Any], *, xser: bool, info: bool = False) -> None:
    """Write a file; ``xser``: each tensor to a file of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if xser:
        xser_file.write_xser(path, tree, info=info)
    else:
        torch_save.write_tree(path, tree)


def at_once(tasks: Iterable[Callable[[], None]], workers: int) -> None:
    """Run up to ``workers`` tasks at once; raise the first failure after all have ended."""
    if workers == 1:
        for task in tasks:
            task()
        return
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(task) for task in tasks]:
            done.result()


def encoded(
    rank: Mapping[str, Any], progress: Mapping[str, Any], epoch: int, context: SaveContext, form: str
) -> dict[str, Any]:
    """The tree of a rank in files that hold everything in one: ``model``, ``optimizer``, ``scheduler``.

    Raises:
        CheckpointError: the rank has optimizer states, and the settings of the optimizer are not known.
    """
    step = int(progress.get("step") or 0)
    tree: dict[str, Any] = {"model": dict(rank["model"])}
    if "optimizer" in rank:
        tree["optimizer"] = indexed_state(rank["optimizer"], rank["model"], context, step, form)
        if context.train is not None:
            tree["scheduler"] = scheduler_state_dict(context, step)
    return {**tree, "step": step, **position(progress, epoch)}


def position(progress: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """The position of a run, under the names of neuronx-distributed's scripts and under :data:`OURS`."""
    return {"global_step": int(progress.get("step") or 0), "epoch": epoch, OURS: {"progress": dict(progress)}}


def epoch_of(tree: Mapping[str, Any]) -> dict[str, int]:
    """The part ``epoch`` of a state, if a script counts epochs."""
    epoch = tree.get("epoch")
    return {"epoch": epoch} if isinstance(epoch, int) else {}


def decoded(tree: Mapping[str, Any], path: Path, *, weights: bool) -> dict[str, Any]:
    """The state of a rank from the tree of :func:`encoded`; a bare state dict is a model.

    Raises:
        CheckpointError: it holds no model.
    """
    model = tree.get("model", tree.get("state_dict"))
    if model is None and tree and all(isinstance(value, Lazy) for value in tree.values()):
        model = tree
    if not isinstance(model, Mapping):
        there = ", ".join(map(str, list(tree)[:8])) or "nothing"
        raise CheckpointError(f"{path}: it has no entry 'model'; expected a dict of model and optimizer, found {there}")
    state: dict[str, Any] = {"model": dict(model)}
    if not weights and isinstance(tree.get("optimizer"), Mapping):
        state["indexed"] = tree["optimizer"]
    return state


def progress_of(tree: Mapping[str, Any], named: int | None) -> dict[str, Any]:
    """The position in schedule and data: ours if we wrote it, else the step in the file, or ``named``."""
    exact = tree.get(OURS)
    if isinstance(exact, Mapping) and isinstance(exact.get("progress"), Mapping):
        return dict(exact["progress"])
    counts = (tree.get(key) for key in ("step", "total_steps", "global_step"))
    scheduler = tree.get("scheduler")
    last = scheduler.get("last_epoch") if isinstance(scheduler, Mapping) else None
    step = next((count for count in (*counts, last, named) if isinstance(count, int)), 0)
    return {"step": step, "consumed_samples": None}


def require_one_step(steps: Mapping[Path, Any]) -> None:
    """Require that all files have the same step.

    Raises:
        CheckpointError: they are of several checkpoints.
    """
    first, *further = steps
    for path in further:
        if steps[path] != steps[first]:
            raise CheckpointError(
                f"{path} is of step {steps[path]}, and {first} of step {steps[first]}: files of two checkpoints are "
                "mixed"
            )
