"""Output matrices that another package cuts by rows: who computes with them.

A matrix that the core cuts is a DTensor, which tells by itself. Others are plain tensors, and carry a :class:`Head`.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Head(Protocol):
    """Computes with the rows ``[own vocabulary, hidden]`` that this rank has of an output matrix."""

    def losses_and_hits(
        self, hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, *, with_hits: bool
    ) -> tuple[Tensor, Tensor]:
        """Cross entropy ``[...]`` in fp32, 0 where a label is negative, and whether the likeliest word is the label.

        Args:
            hidden: ``[..., hidden]``, the same on all ranks.
            weight: this rank's rows.
            labels: int64 ``[...]``, numbers of the whole vocabulary.
            bias: of this rank's rows.
            with_hits: else the second result is empty.
        """
        ...

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., vocabulary]``, whole on every rank."""
        ...


def give(weight: Tensor, head: Head) -> None:
    """From now on, ``head`` computes with ``weight``."""
    weight.recipe_head = head  # type: ignore[attr-defined]


def head_of(weight: Tensor) -> Head | None:
    """What computes with ``weight``, where it is not the core."""
    found: Head | None = getattr(weight, "recipe_head", None)
    return found
