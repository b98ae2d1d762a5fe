"""LAMB as NVIDIA trains BERT with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from recipe_core.train.optim.adam import adam_, numbers
from recipe_core.train.optim.adamw import AdamW, Group
from recipe_core.train.optim.batch import ParameterBatch
from recipe_core.train.optim.norms import Norms
from recipe_core.train.optim.pieces import Piece, chunks, cut, views
from recipe_core.train.optim.wide import FIRSTS, SECONDS, Widener, computing

_CPU_UPDATES, _UPDATES = 1 << 20, 1 << 26
"""Values of tensors whose updates are kept at once, between the two passes over them: what a CPU's cache holds; else
enough to keep the device busy. A larger tensor is taken alone."""


class Lamb(AdamW):
    """LAMB (You and others, 2020) in the form of NVIDIA's FusedLAMB and its BERT recipe.

    The gradients are first clipped to their global norm. That is the training loop's clipping (``train.clip``), which
    sees the gradients of all ranks; there is no second one here. Then, with Adam's bias-corrected moments m and v,

        update = m / (sqrt(v) + eps) + weight_decay * weight
        weight -= lr * (norm(weight) / norm(update)) * update

    where the norms are those of the whole tensor, however it is sharded; the ratio is 1 where a norm is 0, and at most
    ``train.trust_clip`` where that is set. A group with ``adapts=False`` (biases and norms) has the ratio 1 throughout:
    it takes AdamW's step. (NVIDIA's does so wherever the weight decay is 0; here decay and adapting are independent.)
    """

    def _in_place(self, shard: Tensor, widths: tuple[torch.dtype, ...], state: Mapping[str, Tensor]) -> bool:
        return False

    def _update(self, batch: ParameterBatch, group: Group, widener: Widener) -> None:
        if not group.get("adapts", True):
            super()._update(batch, group, widener)
            return
        for part in batch.parts(_CPU_UPDATES if batch.weights[0].is_cpu else _UPDATES):
            self._adapt(part, group, widener)

    def _adapt(self, batch: ParameterBatch, group: Group, widener: Widener) -> None:
        """One step of the tensors of ``batch``, in two passes: all of an update must be there before its norm is."""
        dtype = computing(batch.weights[0].dtype)
        flat = batch.weights[0].new_empty(sum(weight.numel() for weight in batch.weights), dtype=dtype)
        updates, norms = cut(flat, batch.weights), Norms(len(batch.weights), batch.shard_groups, flat)
        plan = chunks(batch.weights)
        for chunk in plan:
            parts = views(updates, chunk)
            self._direction(parts, batch, chunk, group, widener)
            weights = widener.widen("weights", batch.updated, chunk, dtype).values
            torch._foreach_add_(parts, weights, alpha=group["weight_decay"])
            norms.add(chunk, weights, parts)
        ratios = norms.ratios(self._clip)
        rate = numbers([group["lr"]], ratios) if self._traced else group["lr"]  # see adam.py
        scales = (ratios * rate).unbind()
        for chunk in plan:
            parts = views(updates, chunk)
            torch._foreach_mul_(parts, [scales[piece.tensor] for piece in chunk])
            wide = widener.widen("weights", batch.updated, chunk, dtype)
            torch._foreach_sub_(wide.values, parts)
            widener.store_weights(wide, batch, chunk)

    def _direction(
        self, out: list[Tensor], batch: ParameterBatch, chunk: Sequence[Piece], group: Group, widener: Widener
    ) -> None:
        """Adam's update without the learning rate, into ``out``; the moments move on."""
        dtype = out[0].dtype
        gradients = widener.widen("gradients", batch.gradients, chunk, dtype)
        firsts = widener.widen("firsts", batch.firsts, chunk, dtype)
        seconds = widener.widen("seconds", batch.seconds, chunk, dtype)
        # A step of Adam that begins at zero, with the learning rate -1, ends at the update.
        torch._foreach_zero_(out)
        adam_(
            out, gradients.values, firsts.values, seconds.values, batch.step,
            lr=-1.0, betas=group["betas"], eps=group["eps"], decay=0.0, traced=self._traced,
        )  # fmt: skip
        widener.store(firsts, batch, chunk, FIRSTS)
        widener.store(seconds, batch, chunk, SECONDS)
