"""The network and its loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import Batch, Loss
from recipe_counting.plugin import Reader


class Network(nn.Module):
    """``digits`` [batch, length + 1] to scores of the next digit [batch, length, 10]."""

    def __init__(self, config: Reader) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, config.hidden)
        self.read = nn.GRU(config.hidden, config.hidden, batch_first=True)
        self.score = nn.Linear(config.hidden, 10)

    def forward(self, batch: Batch) -> Tensor:
        """Scores for each place after the first digit."""
        states, _ = self.read(self.embed(batch["digits"][:, :-1]))
        scores: Tensor = self.score(states)
        return scores


def loss(scores: Tensor, batch: Batch) -> Mapping[str, Tensor]:
    """``loss`` is minimised; what stands beside it is logged."""
    expected = batch["digits"][:, 1:]
    return {
        "loss": F.cross_entropy(scores.float().flatten(0, 1), expected.flatten()),
        "accuracy": (scores.argmax(-1) == expected).float().mean(),
    }


def build(config: Reader) -> tuple[nn.Module, Loss]:
    """The target of the model's ``build``."""
    return Network(config), loss
