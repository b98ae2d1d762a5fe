"""Saving beside training: a thread of every rank writes the state as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from recipe_core.checkpoint.lazy import leaves, mapped
from recipe_core.checkpoint.snapshot import Snapshot
from recipe_core.checkpoint.store import Checkpoints
from recipe_core.engine.native import to_host
from recipe_core.errors import RecipeError
from recipe_core.launch.watch.heartbeat import SAVE, beat

Copy = Callable[[Sequence[Tensor]], Sequence[Any]]
"""See :meth:`recipe_core.engine.protocol.Engine.to_host`."""


class Saver:
    """Saves checkpoints, one at a time; a context manager that ends its thread.

    Training waits for the save before if that is still under way. On a CPU, weights and moments are read by the thread
    while the next step computes; :meth:`before_update`, called before the optimizer changes them, copies those that are
    left, or waits for them where memory is short. Whatever else there is, is copied first. A save that failed is raised
    by the next call. The thread's collectives need a process group of their own: ``checkpoints`` is made with
    :meth:`recipe_core.engine.protocol.Engine.side`, whose group its format uses too.
    """

    def __init__(
        self, checkpoints: Checkpoints, *, background: bool, to_host: Copy = to_host, traced: bool = False
    ) -> None:
        self.checkpoints, self._background = checkpoints, background
        self._to_host, self._traced = to_host, traced
        self._thread = ThreadPoolExecutor(1, "save")
        self._pending: Future[Path] | None = None
        self._snapshot: Snapshot | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A mistake of the user's leaves the other ranks alive, and the save under way will end. After anything else it
        # may wait for a rank that is gone: the engine ends that, not this.
        self._thread.shutdown(wait=error is None or isinstance(error, RecipeError))

    def save(self, step: int, state: dict[str, Any], val_loss: float | None, *, copied_already: bool = False) -> None:
        """Save ``state`` as it is now; all ranks call it. ``copied_already``: it is a copy, which nothing changes.

        Raises:
            DivergedError: a weight or a state of the optimizer is not finite; nothing is saved.
            RecipeError: the save before this one, or this one where it is not in the background, failed.
        """
        self.wait()
        kept: Any = state
        if self._background and not self._traced and not copied_already:
            self._snapshot = Snapshot(state)
            kept = self._snapshot.lazy(state)
        copies = copied(kept, self._to_host) if (self._background or self._traced) and not copied_already else state
        # Looking at a traced tensor would be a graph of its own, compiled at the first save.
        self.checkpoints.require_finite(step, copies if self._traced else state)
        if self._background:
            self._pending = self._thread.submit(self._save_beside, step, copies, val_loss)
        else:
            self.checkpoints.save(step, state, val_loss)

    def _save_beside(self, step: int, state: dict[str, Any], val_loss: float | None) -> Path:
        with beat.during(SAVE):
            return self.checkpoints.save(step, state, val_loss)

    def before_update(self) -> None:
        """Have what the save under way still needs before the optimizer changes it."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.settle(lambda: self._pending is None or self._pending.done())

    def failed(self) -> bool:
        """True if the save in the background is over, and :meth:`wait` would raise its error."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def wait(self) -> None:
        """Wait until everything is on the disk.

        Raises:
            RecipeError: the save under way failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
        self._snapshot = None

    def way_out(self, failed: int) -> str:
        """Advice for a run that diverged at the step ``failed``, once all is saved; see :meth:`Checkpoints.way_out`."""
        self.wait()
        return self.checkpoints.way_out(failed)


def copied(state: Any, to_host: Copy = to_host) -> Any:
    """A nested state with tensors of its own, brought to the host together: each time the host asks, it waits."""
    tensors = [leaf for leaf in leaves(state) if isinstance(leaf, Tensor) and not leaf.is_meta]  # meta: on other ranks
    copies = dict(zip(map(id, tensors), to_host(tensors), strict=True))
    return mapped(state, lambda leaf: copies.get(id(leaf), leaf))
