"""Saving beside training: the state is copied, and a thread of every rank writes the copy."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from recipe_core.checkpoint.lazy import hosted, mapped
from recipe_core.checkpoint.store import Checkpoints
from recipe_core.errors import RecipeError


class Saver:
    """Saves checkpoints, one at a time; a context manager that ends its thread.

    Training waits for the copy, and for the save before if that is still under way. A save that failed is raised by the
    next call. The thread's collectives need a process group of their own: ``checkpoints`` is made with
    :meth:`recipe_core.engine.protocol.Engine.side`, whose group its format uses too.
    """

    def __init__(self, checkpoints: Checkpoints, *, background: bool) -> None:
        self.checkpoints, self._background = checkpoints, background
        self._thread = ThreadPoolExecutor(1, "save")
        self._pending: Future[Path] | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A mistake of the user's leaves the other ranks alive, and the save under way will end. After anything else it
        # may wait for a rank that is gone: the engine ends that, not this.
        self._thread.shutdown(wait=error is None or isinstance(error, RecipeError))

    def save(self, step: int, state: dict[str, Any], val_loss: float | None) -> None:
        """Save ``state`` as it is now; all ranks call it.

        Raises:
            DivergedError: a weight or a state of the optimizer is not finite; nothing is saved.
            RecipeError: the save before this one, or this one where it is not in the background, failed.
        """
        self.wait()
        # Looking at a tensor of XLA's would be a graph of its own, compiled at the first save.
        remote = any(isinstance(leaf, Tensor) and leaf.device.type == "xla" for leaf in _leaves(state))
        if remote or self._background:
            held = copied(state)
        self.checkpoints.require_finite(step, held if remote else state)
        if self._background:
            self._pending = self._thread.submit(self.checkpoints.save, step, held, val_loss)
        else:
            self.checkpoints.save(step, state, val_loss)

    def wait(self) -> None:
        """Until everything is on the disk.

        Raises:
            RecipeError: the save under way failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def copied(state: Any) -> Any:
    """A nested state with tensors of its own, on the host; shards of a DTensor stay on their device, unless it is one
    of XLA."""
    remote = [leaf for leaf in _leaves(state) if isinstance(leaf, Tensor) and leaf.device.type == "xla"]
    remote = [leaf for leaf in remote if not isinstance(leaf, DTensor)]
    brought: dict[int, Any] = {}
    if remote:  # all at once: each time the host asks, it waits
        from recipe_core.xla.shards import on_host

        brought = dict(zip(map(id, remote), on_host(remote), strict=True))

    def copy(leaf: Any) -> Any:
        if id(leaf) in brought:
            return brought[id(leaf)]
        if isinstance(leaf, DTensor):
            return hosted(leaf) if leaf.device.type == "xla" else leaf.detach().clone()
        if isinstance(leaf, Tensor) and not leaf.is_meta:  # meta: what another process holds
            return leaf.detach().to("cpu", copy=True)
        return leaf

    return mapped(state, copy)


def _leaves(state: Any) -> list[Any]:
    found: list[Any] = []
    mapped(state, found.append)
    return found
