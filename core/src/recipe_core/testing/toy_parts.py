"""The code that the toy plugin names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.errors import ConfigError
from recipe_core.hooks.inference import Generation
from recipe_core.layouts.parallel import Batch, Loss, Run
from recipe_core.testing.toy import ToyData, ToyModel

WIDTH = ToyData().width


class Toy(nn.Module):
    """Maps ``vectors`` [batch, width] to scores of two classes [batch, 2]."""

    def __init__(self, config: ToyModel) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, config.hidden), nn.Linear(config.hidden, 2)])
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, batch: Batch) -> Tensor:
        """Return the scores of the two classes."""
        first, second = self.layers
        width = next(first.parameters()).dtype
        scores: Tensor = second(self.dropout(torch.relu(first(batch["vectors"].to(width)))))
        return scores


def build_model(config: ToyModel) -> tuple[nn.Module, Loss]:
    """Return the module and its loss."""

    def loss(output: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        value = F.cross_entropy(output.float(), batch["labels"])
        if config.poison_after is not None:
            end = math.inf if config.poison_until is None else config.poison_until
            poisoned = (batch["numbers"] >= config.poison_after) & (batch["numbers"] < end)
            value = torch.where(poisoned.any(), torch.nan, value)
        counts = {}
        if config.counts:
            counts["real_tokens"] = (batch["vectors"] > 0).sum()
            counts["sequences"] = torch.full_like(counts["real_tokens"], 2 * len(output))
        return {"loss": value, "accuracy": (output.argmax(-1) == batch["labels"]).float().mean(), **counts}

    return Toy(config), loss


def generate(trained: TrainedModel, options: Generation) -> Callable[[str], dict[str, Any]]:
    """Return a function that classifies a vector, written as numbers."""
    options.require_only(trained.model.spec.name)

    @torch.no_grad()
    def answer(prompt: str) -> dict[str, Any]:
        try:
            vector = torch.tensor([[float(word) for word in prompt.split()]], device=trained.device)
        except ValueError as error:
            raise ConfigError(f"expected {WIDTH} numbers, got {prompt!r}") from error
        shares = trained.module({"vectors": vector}).softmax(-1)[0].tolist()
        return {"shown": str(shares.index(max(shares))), "probabilities": shares}

    return answer


class Vectors:
    """Samples of a split; sample n is drawn from a generator seeded by n, whatever was read before."""

    def __init__(self, config: ToyData) -> None:
        self.config = config

    def read(self, split: str, start: int, count: int) -> Batch:
        """Return ``vectors`` [count, width], ``labels`` and ``numbers`` [count]."""
        offset = self.config.seed + (10**9 if split == "valid" else 0)
        first, left_out = self.config.left_out or (0, 0)
        numbers = [n + left_out * (n >= first and split == "train") for n in range(start, start + count)]
        rows = [
            torch.randn(self.config.width, generator=torch.Generator().manual_seed(offset + number))
            for number in numbers
        ]
        vectors = torch.stack(rows)
        return {
            "vectors": vectors,
            "labels": (vectors.sum(-1) > 0).long(),
            "numbers": torch.tensor(numbers),
        }


def build_data(config: ToyData, run: Run) -> Vectors:
    """Return the samples."""
    return Vectors(config)
