"""The code that trial.py names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from recipe_core import Batch, Loss, Run
from torch import Tensor, nn

from recipe_new_plugin.trial import Net, Points


class Layers(nn.Module):
    """Maps ``points`` [batch, 2] to scores of two classes [batch, 2]."""

    def __init__(self, config: Net) -> None:
        super().__init__()
        self.first = nn.Linear(2, config.hidden)
        self.second = nn.Linear(config.hidden, 2)

    def forward(self, batch: Batch) -> Tensor:
        """Return the scores."""
        return self.second(torch.relu(self.first(batch["points"])))


def loss(scores: Tensor, batch: Batch) -> Mapping[str, Tensor]:
    """Return ``loss``, which is minimised; other entries are logged."""
    labels = batch["labels"]
    return {
        "loss": F.cross_entropy(scores.float(), labels),
        "accuracy": (scores.argmax(-1) == labels).float().mean(),
    }


def build_net(config: Net) -> tuple[nn.Module, Loss]:
    """Return the model and its loss."""
    return Layers(config), loss


class Circle:
    """Samples of points; sample n has a generator of its own, whatever was read before."""

    def __init__(self, config: Points, seed: int) -> None:
        self.config, self.seed = config, seed

    def read(self, split: str, start: int, count: int) -> Batch:
        """Return ``points`` [count, 2] and ``labels`` [count]."""
        offset = 1_000_000_007 * self.seed + (500_000_003 if split == "valid" else 0)
        rows = [
            torch.randn(2, generator=torch.Generator().manual_seed(offset + number))
            for number in range(start, start + count)
        ]
        points = torch.stack(rows)
        return {"points": points, "labels": (points.norm(dim=-1) < self.config.radius).long()}


def build_points(config: Points, run: Run) -> Circle:
    """Return an endless stream of samples; the core divides it among the ranks."""
    return Circle(config, run.train.seed)
