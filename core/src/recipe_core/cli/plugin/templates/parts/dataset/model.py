"""The model and its loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from recipe_core import Batch, Loss
from torch import Tensor, nn

from recipe_new_plugin.settings import NextByte


class Guess(nn.Module):
    """Maps ``tokens`` [batch, sequence] to scores of the next byte [batch, sequence, 256]."""

    def __init__(self, config: NextByte) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, config.hidden)
        self.score = nn.Linear(config.hidden, 256)

    def forward(self, batch: Batch) -> Tensor:
        """Return the scores."""
        return self.score(self.embed(batch["tokens"]))


def loss(scores: Tensor, batch: Batch) -> Mapping[str, Tensor]:
    """Return ``loss``, which is minimised; other entries are logged."""
    return {"loss": F.cross_entropy(scores.float().flatten(0, 1), batch["labels"].flatten())}


def build(config: NextByte) -> tuple[nn.Module, Loss]:
    """Return the model and its loss."""
    return Guess(config), loss
