"""The model and its loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from recipe_core import Batch, Loss, causal_attention, normal_of
from torch import Tensor, nn

from recipe_new_plugin.settings import Decoder


def build(config: Decoder) -> tuple[Transformer, Loss]:
    """Return the model and its loss; without values under ``torch.device("meta")``."""
    module = Transformer(config)
    if torch.get_default_device().type != "meta":
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(module.initial_value(name, parameter.shape))
    return module, loss


def loss(logits: Tensor, batch: Batch) -> Mapping[str, Tensor]:
    """Return ``loss``, which is minimised; other entries are logged."""
    labels = batch["labels"]
    return {
        "loss": F.cross_entropy(logits.float().flatten(0, 1), labels.flatten()),
        "accuracy": (logits.argmax(-1) == labels).float().mean(),
    }


class Transformer(nn.Module):
    """Maps tokens to logits. ``hidden`` is ``[batch, sequence, hidden]``."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.std = config.init_std
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden, bias=False)
        self.output = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        """Return logits ``[batch, sequence, vocabulary]`` of ``batch["tokens"]`` ``[batch, sequence]``.

        As a stage of a pipeline: ``hidden`` comes from the stage before, submodules of other stages are None, and a
        stage that is not the last returns ``hidden``.
        """
        if hidden is None:
            tokens = batch["tokens"]
            hidden = self.tokens(tokens) + self.positions(
                torch.arange(tokens.shape[1], device=tokens.device)
            )
        for block in self.blocks:
            if block is not None:
                hidden = block(hidden)
        return hidden if self.norm is None else self.output(self.norm(hidden))

    def initial_value(self, name: str, shape: torch.Size) -> Tensor:
        """Return the initial value of a parameter, which depends on the seed, its name and shape only."""
        return torch.ones(shape, device="cpu") if len(shape) == 1 else normal_of(name, shape, self.std)


class Block(nn.Module):
    """Attention and MLP, each behind a norm, each added to the residual stream."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden, bias=False)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.hidden, bias=False)
        self.up = nn.Linear(config.hidden, 4 * config.hidden, bias=False)
        self.down = nn.Linear(4 * config.hidden, config.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``hidden`` to ``hidden``."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.down(F.gelu(self.up(self.mlp_norm(hidden))))


class Attention(nn.Module):
    """Causal self-attention. The rows of ``qkv`` are whole heads, so that they can be sharded."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``hidden`` to ``hidden``; the size of ``qkv``'s output gives the heads on this rank."""
        qkv = self.qkv(hidden).unflatten(-1, (-1, 3, self.head_dim))
        return self.out(causal_attention(qkv, 0.0).flatten(-2))
