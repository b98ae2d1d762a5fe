"""Snapshot of a state for a background save, without a copy of the whole state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from threading import Condition
from typing import Any

import torch
from torch import Tensor

from recipe_core.checkpoint.lazy import Lazy, tree_map
from recipe_core.engine.dtensor import is_dtensor
from recipe_core.engine.memory import available_memory
from recipe_core.errors import CheckpointError


class Snapshot:
    """The trained tensors of a state, read in place until the optimizer is about to change them.

    Forward and backward passes change neither weights nor optimizer states. While the next step computes, a thread that
    writes them copies one at a time; before the update, :meth:`copy_unread` copies the rest. Other tensors (buffers,
    which the forward pass may change) are not part of it.

    Args:
        state: nested; see :mod:`recipe_core.checkpoint.lazy`.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        tensors = _trained(state)
        times = Counter(map(id, tensors))
        self._live = {number: tensor for number, tensor in enumerate(tensors) if times[id(tensor)] == 1}
        self._versions = {number: tensor._version for number, tensor in self._live.items()}
        self._numbers = {id(tensor): number for number, tensor in self._live.items()}
        self._copies: dict[int, Tensor] = {}
        self._changed = Condition()

    def lazy(self, state: Any) -> Any:
        """Return ``state`` with a :class:`Lazy` for each tensor of the snapshot; each can be read once."""

        def leaf(value: Any) -> Any:
            number = self._numbers.get(id(value))
            return value if number is None else Lazy(value.shape, value.dtype, partial(self._read, number))

        return tree_map(leaf, state)

    def _read(self, number: int) -> Tensor:
        with self._changed:
            live = self._live.pop(number, None)
            value = self._copies.pop(number) if live is None else self._copy(number, live)
            self._changed.notify_all()
        return value

    def _copy(self, number: int, live: Tensor) -> Tensor:
        if live._version != self._versions[number]:
            raise CheckpointError(
                f"a trained tensor of shape {list(live.shape)} was changed while it was being saved, and not by the "
                "optimizer's step; save at once (checkpoint=single), or have the optimizer change it"
            )
        return live.detach().clone()

    def copy_unread(self, done: Callable[[], bool], memory: Callable[[], int | None] = available_memory) -> None:
        """Copy the tensors that were not read yet, or wait until they are read if copies would not fit into memory.

        Args:
            done: returns True once no tensor will be read any more.
            memory: returns the available memory in bytes; None if unknown.

        Raises:
            CheckpointError: a tensor was changed before.
        """
        with self._changed:
            needed, free = sum(tensor.nbytes for tensor in self._live.values()), memory() if self._live else None
            while self._live and free is not None and needed > free / 2 and not done():
                self._changed.wait(0.1)
            live, self._live = self._live, {}
            self._copies |= {number: self._copy(number, tensor) for number, tensor in live.items() if not done()}


def _trained(state: Mapping[str, Any]) -> list[Tensor]:
    """Weights with optimizer states, and these states, of those that are whole tensors in this process's memory."""
    moments = state.get("optimizer", {}).get("state", {})
    weights = [tensor for name, tensor in state.get("model", {}).items() if name in moments]
    tensors: list[Tensor] = []
    tree_map(lambda leaf: tensors.append(leaf) if isinstance(leaf, Tensor) else None, [weights, moments])
    return [tensor for tensor in tensors if tensor.device == torch.device("cpu") and not is_dtensor(tensor)]
