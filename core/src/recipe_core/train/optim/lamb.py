"""LAMB as NVIDIA trains BERT with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from recipe_core.train.optim.adamw import AdamW, ParamGroup
from recipe_core.train.optim.batch import ParameterBatch
from recipe_core.train.optim.norms import Norms
from recipe_core.train.optim.slices import Slice, chunks, unflatten_like, views
from recipe_core.train.optim.upcast import FIRSTS, SECONDS, Upcaster, compute_dtype

_CPU_UPDATES, _UPDATES = 1 << 20, 1 << 26
"""Elements whose updates are kept between the two passes over them: what a CPU's cache holds; elsewhere, enough to keep
the device busy. A larger tensor is a part of its own."""


class Lamb(AdamW):
    """LAMB (You and others, 2020) in the form of NVIDIA's FusedLAMB and its BERT recipe.

    LAMB first clips the gradients to their global norm. The training loop does that (``train.clip``), over the
    gradients of all ranks; this class does not clip again. Then, with Adam's bias-corrected moments m and v,

        update = m / (sqrt(v) + eps) + weight_decay * weight
        weight -= lr * (norm(weight) / norm(update)) * update

    where the norms are those of the whole tensor, however it is sharded; the ratio is 1 where a norm is 0, and at most
    ``train.trust_clip`` where that is set. A group with ``adapts=False`` (biases and norms) has the ratio 1, which is
    AdamW's step. (NVIDIA's has it wherever the weight decay is 0; here decay and adaptation are independent.)
    """

    def _in_place(self, shard: Tensor, widths: tuple[torch.dtype, ...], state: Mapping[str, Tensor]) -> bool:
        return False

    def _update(self, batch: ParameterBatch, group: ParamGroup, upcaster: Upcaster) -> None:
        if not group.get("adapts", True):
            super()._update(batch, group, upcaster)
            return
        for part in batch.parts(_CPU_UPDATES if batch.weights[0].is_cpu else _UPDATES):
            self._adapt(part, group, upcaster)

    def _adapt(self, batch: ParameterBatch, group: ParamGroup, upcaster: Upcaster) -> None:
        # two passes: the norm of an update needs all of it
        dtype = compute_dtype(batch.weights[0].dtype)
        flat = batch.weights[0].new_empty(sum(weight.numel() for weight in batch.weights), dtype=dtype)
        updates, norms = unflatten_like(flat, batch.weights), Norms(len(batch.weights), batch.shard_groups, flat)
        plan = chunks(batch.weights)
        for chunk in plan:
            parts = views(updates, chunk)
            self._direction(parts, batch, chunk, group, upcaster)
            weights = upcaster.upcast("weights", batch.updated, chunk, dtype).values
            torch._foreach_add_(parts, weights, alpha=group["weight_decay"])
            norms.add(chunk, weights, parts)
        ratios = norms.ratios(self._trust_clip)
        scales = (ratios * self._rate(group, ratios)).unbind()
        for chunk in plan:
            parts = views(updates, chunk)
            torch._foreach_mul_(parts, [scales[part.tensor] for part in chunk])
            upcast = upcaster.upcast("weights", batch.updated, chunk, dtype)
            torch._foreach_sub_(upcast.values, parts)
            upcaster.store_weights(upcast, batch, chunk)

    def _rate(self, group: ParamGroup, ratios: Tensor) -> float | Tensor:
        rate: float = group["lr"]
        return rate

    def _direction(
        self, out: list[Tensor], batch: ParameterBatch, chunk: Sequence[Slice], group: ParamGroup, upcaster: Upcaster
    ) -> None:
        """Write Adam's update without the learning rate to ``out``, and update the moments."""
        dtype = out[0].dtype
        gradients = upcaster.upcast("gradients", batch.gradients, chunk, dtype)
        firsts = upcaster.upcast("firsts", batch.firsts, chunk, dtype)
        seconds = upcaster.upcast("seconds", batch.seconds, chunk, dtype)
        # A step of Adam from zero, with the learning rate -1, gives the update.
        torch._foreach_zero_(out)
        self._adam(
            out, gradients.values, firsts.values, seconds.values, batch.step,
            lr=-1.0, betas=group["betas"], eps=group["eps"], decay=0.0,
        )  # fmt: skip
        upcaster.store(firsts, batch, chunk, FIRSTS)
        upcaster.store(seconds, batch, chunk, SECONDS)
