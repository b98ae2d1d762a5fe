"""Background saves: a thread of every rank writes a snapshot of the state while training continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from recipe_core.checkpoint.lazy import tree_leaves, tree_map
from recipe_core.checkpoint.saving.snapshot import Snapshot
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.engine.staging import to_host
from recipe_core.errors import RecipeError
from recipe_core.launch.watch.heartbeat import SAVE, beat

Copy = Callable[[Sequence[Tensor]], Sequence[Any]]
"""See :meth:`recipe_core.engine.protocol.Engine.to_host`."""


class Saver:
    """Saves checkpoints, one at a time; a context manager that joins its thread.

    A save first waits for the previous one. On a CPU, the thread reads weights and moments while the next step
    computes; :meth:`before_update`, called before the optimizer changes them, copies the remaining ones, or waits for
    them if memory is short. All other tensors are copied first. The error of a failed save is raised by the next
    call. The thread's collectives need their own process group: ``checkpoints`` is made with
    :meth:`recipe_core.engine.protocol.Engine.host_ranks`, whose group its format uses too.
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
        # After a user error the other ranks are alive, and the pending save ends. After any other error it may wait for
        # a rank that has exited; the engine terminates it then.
        self._thread.shutdown(wait=error is None or isinstance(error, RecipeError))

    def save(self, step: int, state: dict[str, Any], val_loss: float | None, *, copied_already: bool = False) -> None:
        """Save the present ``state``; a collective. ``copied_already``: it is a copy that nothing changes.

        Raises:
            DivergedError: a weight or an optimizer state is not finite; nothing is saved.
            RecipeError: the previous save failed, or this one if it is not in the background.
        """
        self.wait()
        kept: Any = state
        if self._background and not self._traced and not copied_already:
            self._snapshot = Snapshot(state)
            kept = self._snapshot.lazy(state)
        copies = state
        if (self._background or self._traced) and not copied_already:
            copies = copy_to_host(kept, self._to_host)
        # Checking a traced tensor would need a graph of its own, compiled at the first save.
        self.checkpoints.require_finite(step, copies if self._traced else state)
        if self._background:
            self._pending = self._thread.submit(self._save_in_thread, step, copies, val_loss)
        else:
            self.checkpoints.save(step, state, val_loss)

    def _save_in_thread(self, step: int, state: dict[str, Any], val_loss: float | None) -> Path:
        with beat.during(SAVE):
            return self.checkpoints.save(step, state, val_loss)

    def before_update(self) -> None:
        """Copy what the pending save still needs, before the optimizer changes it."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.copy_unread(lambda: self._pending is None or self._pending.done())

    def failed(self) -> bool:
        """True if the background save has ended and :meth:`wait` would raise its error."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def wait(self) -> None:
        """Wait until everything is on disk.

        Raises:
            RecipeError: the pending save failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
        self._snapshot = None

    def recovery_advice(self, failed: int) -> str:
        """Wait for the pending save; then see :meth:`Checkpoints.recovery_advice`."""
        self.wait()
        return self.checkpoints.recovery_advice(failed)


def copy_to_host(state: Any, to_host: Copy = to_host) -> Any:
    """Copy the tensors of a nested state to the host in one call, since every transfer makes the host wait."""
    # Meta tensors are placeholders of those of other ranks.
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor) and not leaf.is_meta]
    copies = dict(zip(map(id, tensors), to_host(tensors), strict=True))
    return tree_map(lambda leaf: copies.get(id(leaf), leaf), state)
