"""The module and its loss. Shapes: ``hidden`` is ``[batch, sequence, hidden]``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import Batch, Loss, linear_cross_entropy, linear_logits, normal_of
from recipe_decoder.settings import Decoder


def build(config: Decoder) -> tuple[DecoderModel, Loss]:
    """The model on the default device, and the mean of its losses."""
    module = DecoderModel(config)
    if torch.get_default_device().type != "meta":
        module.reset_parameters()
    return module, loss


def loss(output: Tensor, batch: Batch) -> Mapping[str, Tensor]:
    """The mean of the losses ``[batch, sequence]``."""
    return {"loss": output.mean()}


def example(config: Decoder) -> Batch:
    """Two samples without labels, for which the model gives logits."""
    length = min(32, config.positions)
    return {"tokens": (torch.arange(2 * length) * 7919 % config.vocabulary).view(2, length)}


class DecoderModel(nn.Module):
    """A decoder-only transformer."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        """Losses ``[batch, sequence]`` where ``batch`` has labels, else logits ``[batch, sequence, vocabulary]``.

        In a pipeline, ``hidden`` is what the stage before returned, and a submodule that this stage lacks is None.
        """
        if hidden is None:
            hidden = self.tokens(batch["tokens"])
        for block in self.blocks:
            if block is not None:
                hidden = block(hidden)
        if self.norm is None:
            return hidden
        hidden = self.norm(hidden)
        if "labels" in batch:
            return linear_cross_entropy(hidden, self.head.weight, batch["labels"], averaged=True)
        return linear_logits(hidden, self.head.weight)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all values."""
        for name, parameter in self.named_parameters():
            parameter.copy_(self.initial_value(name, parameter.shape))

    def initial_value(self, name: str, shape: torch.Size) -> Tensor:
        """Ones for norms, normal values for matrices; they follow from the seed, the name and the shape."""
        return torch.ones(shape, device="cpu") if len(shape) == 1 else normal_of(name, shape, self.config.init_std)


class Block(nn.Module):
    """Attention and MLP, each behind a norm, each added to the residual stream."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.mlp = SwiGlu(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden`` to ``hidden``."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        output: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return output


class Attention(nn.Module):
    """Causal self-attention; several heads of the queries share one of keys and values."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.head_dim, self.theta = config.head_dim, config.theta
        self.query = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.key = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.value = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.output = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden`` to ``hidden``; a rank of a tensor-parallel group computes with its heads."""
        query, key, value = (
            matrix(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for matrix in (self.query, self.key, self.value)
        )
        context = F.scaled_dot_product_attention(
            rotated(query, self.theta), rotated(key, self.theta), value, is_causal=True, enable_gqa=True
        )
        output: Tensor = self.output(context.transpose(1, 2).flatten(-2))
        return output


class SwiGlu(nn.Module):
    """``down(silu(gate) * up)``."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.mlp, bias=False)
        self.up = nn.Linear(config.hidden, config.mlp, bias=False)
        self.down = nn.Linear(config.mlp, config.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden`` to ``hidden``."""
        output: Tensor = self.down(F.silu(self.gate(hidden)) * self.up(hidden))
        return output


def rotated(x: Tensor, theta: float) -> Tensor:
    """``x [batch, heads, sequence, head_dim]`` with each pair (i, i + head_dim / 2) turned by the position's angles."""
    sequence, half = x.shape[-2], x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(sequence, device=x.device, dtype=torch.float32), frequencies)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
