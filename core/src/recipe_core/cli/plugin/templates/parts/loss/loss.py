"""The loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from recipe_core import Batch, Loss
from torch import Tensor

from recipe_new_plugin.plugin import Focal


def build(config: Focal, own: Loss) -> Loss:
    """Return the loss; ``own`` is the model's own, for losses that add to it."""

    def loss(scores: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """Map ``scores`` [batch, classes] to ``loss``, which is minimised, and values that are logged beside it."""
        # Whatever the precision of the run, logarithms are computed in fp32.
        entropies = F.cross_entropy(scores.float(), batch["labels"], reduction="none")
        weights = (1 - torch.exp(-entropies)) ** config.gamma
        with torch.no_grad():
            logged = {name: value for name, value in own(scores, batch).items() if name != "loss"}
        return {**logged, "loss": (weights * entropies).mean(), "hardest": entropies.detach().max()}

    return loss
