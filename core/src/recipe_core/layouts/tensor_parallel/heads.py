"""Output matrices that another package shards by rows, and the :class:`Head` that computes with each.

A matrix that the core shards is a DTensor, which knows its placement; those of other packages are plain tensors.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class Head(Protocol):
    """Computes with this rank's rows ``[own vocabulary, hidden]`` of an output matrix."""

    def losses_and_hits(
        self, hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, *, with_hits: bool
    ) -> tuple[Tensor, Tensor]:
        """Cross entropy ``[...]`` in fp32, 0 where a label is negative; and whether the likeliest token is the label.

        Args:
            hidden: ``[..., hidden]``, the same on all ranks.
            weight: this rank's rows.
            labels: int64 ``[...]``, ids of the whole vocabulary.
            bias: of this rank's rows.
            with_hits: compute the second result; else it is empty.
        """
        ...

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., vocabulary]``, the same on every rank."""
        ...


_heads: WeakTensorKeyDictionary | None = None
"""None until a layout sets a head, so that torch.compile sees a constant if there are none."""


def set_head(weight: Tensor, head: Head) -> None:
    """Have ``head`` compute with ``weight``, as long as ``weight`` exists."""
    global _heads
    if _heads is None:
        _heads = WeakTensorKeyDictionary()
    _heads[weight] = head


def head_of(weight: Tensor) -> Head | None:
    """The head that computes with ``weight``; None if the core does."""
    return None if _heads is None else _heads.get(weight)
