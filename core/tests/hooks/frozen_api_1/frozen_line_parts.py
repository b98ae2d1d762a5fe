"""The code behind frozen_line.py. Never edit this file: later cores must run it as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from frozen_line import Counted, Stack
from torch import Tensor, nn

from recipe_core import (
    Adapter,
    Batch,
    Job,
    Link,
    Loss,
    Naming,
    Run,
    dropout,
    linear_cross_entropy,
    linear_logits,
    normal_of,
    read_hf_config,
)


class Layers(nn.Module):
    def __init__(self, config: Stack) -> None:
        super().__init__()
        self.p = config.dropout
        self.words = nn.Embedding(config.words, config.width)
        self.blocks = nn.ModuleList(nn.Linear(config.width, config.width) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.words, bias=False)

    def forward(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        if hidden is None:
            hidden = dropout(self.words(batch["ids"]), self.p, self.training)
        for block in self.blocks:
            if block is not None:
                hidden = hidden + torch.tanh(block(hidden))
        if self.norm is None:
            return hidden
        hidden = self.norm(hidden)
        if "next" in batch:
            return linear_cross_entropy(hidden, self.head.weight, batch["next"], averaged=True)
        return linear_logits(hidden, self.head.weight)

    def initial_value(self, name: str, shape: torch.Size) -> Tensor:
        if len(shape) > 1:
            return normal_of(name, shape, 0.1)
        return torch.full(shape, float(name == "norm.weight"), device="cpu")


def loss(output: Tensor, batch: Batch) -> Mapping[str, Tensor]:
    return {"loss": output.mean(), "real_tokens": (batch["ids"] >= 0).sum()}


def build(config: Stack) -> tuple[Layers, Loss]:
    module = Layers(config)
    if torch.get_default_device().type != "meta":
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(module.initial_value(name, parameter.shape))
    return module, loss


def example(config: Stack) -> Batch:
    return {"ids": torch.arange(2 * 4).view(2, 4) % config.words}


class Numbers:
    def __init__(self, config: Counted, seed: int) -> None:
        self.config, self.seed = config, seed

    def read(self, split: str, start: int, count: int) -> Batch:
        first = torch.arange(start, start + count) * 7919 + self.seed + (split == "valid")
        ids = (first[:, None] + (first[:, None] % 3 + 1) * torch.arange(self.config.sequence + 1)) % self.config.words
        return {"ids": ids[:, :-1], "next": ids[:, 1:]}


def read(config: Counted, run: Run) -> Numbers:
    return Numbers(config, run.train.seed)


class Renamed(Naming):
    def adapter(self, config: Stack) -> Adapter:
        text = json.dumps(
            {"model_type": "frozen", "width": config.width, "layers": config.layers, "words": config.words}
        )
        links = [Link(ours=("words.weight",), theirs=("embed.weight",)), _turned("head.weight", "lm_head.weight")]
        return Adapter(links=tuple(links), files={"config.json": text})

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> Mapping[str, Any] | None:
        config = read_hf_config(files)
        if config is None or config.get("model_type") != "frozen":
            return None
        return {name: config[name] for name in ("width", "layers", "words")}


def _turned(ours: str, theirs: str) -> Link:
    def turn(tensors: Any) -> list[Tensor]:
        return [tensor.t() for tensor in tensors]

    return Link(ours=(ours,), theirs=(theirs,), to=turn, back=turn)


def closing(module: nn.Module, job: Job, run: Run) -> dict[str, Any]:
    return {"notes": {"width": str(job.model.config.width)}, "ranks": run.world_size}
