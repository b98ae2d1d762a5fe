"""GPT as Megatron-LM trains it: learned positions, pre-norm blocks, GELU, biases, output tied to the embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import Batch, Loss, causal_attention, dropout, linear_cross_entropy, linear_logits, normal_of
from recipe_megatron_gpt.settings import Gpt


def build(config: Gpt) -> tuple[GptModel, Loss]:
    """The model on the default device, initialised from torch's initial seed, and its loss.

    Under ``with torch.device("meta")`` it has no values; call :meth:`GptModel.reset_parameters` after ``to_empty``.
    """
    with torch.device("meta"):  # skips the initialisation by nn.Linear and nn.Embedding
        module = GptModel(config)
    device = torch.get_default_device()
    if device.type != "meta":
        module.to_empty(device=device)
        module.reset_parameters()
    return module, loss


def loss(output: Tensor, batch: Batch) -> Mapping[str, Tensor]:
    """The mean of the losses ``[batch, sequence]``, over the tokens with ``loss_mask`` 1 if the batch has one."""
    if "loss_mask" not in batch:
        return {"loss": output.mean()}
    mask = batch["loss_mask"].float()
    return {"loss": (output * mask).sum() / mask.sum().clamp(min=1)}


def example(config: Gpt) -> Batch:
    """Two samples of up to 32 tokens from all of the vocabulary, without labels: the model returns logits."""
    length = min(32, config.positions)
    return {"tokens": (torch.arange(2 * length) * 7919 % config.vocabulary).view(2, length)}


class GptModel(nn.Module):
    """A decoder-only transformer. In its parts, ``hidden`` has the shape ``[batch, sequence, hidden]``."""

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.config = config
        self.tokens = _embedding(config.vocabulary, config.hidden)
        self.positions = _embedding(config.positions, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        """Losses if ``batch`` has labels, else logits.

        Args:
            batch: ``tokens``, int64 ``[batch, sequence]``, and optional ``labels``, the next tokens.
            hidden: output of the previous pipeline stage, ``[batch, sequence, hidden]``; None in the first.

        Returns:
            fp32 losses ``[batch, sequence]`` or logits ``[batch, sequence, vocabulary]``; ``hidden`` of a pipeline
            stage that is not the last.
        """
        if hidden is None:
            tokens = batch["tokens"]
            positions = torch.arange(tokens.shape[1], device=tokens.device)
            hidden = self.tokens(tokens) + self.positions(positions)
            hidden = dropout(hidden, self.config.dropout, self.training)
        for block in self.blocks:
            if block is not None:
                hidden = block(hidden)
        if self.norm is None:
            return hidden
        hidden = self.norm(hidden)
        if "labels" in batch:
            labels, averaged = batch["labels"], "loss_mask" not in batch
            return linear_cross_entropy(hidden, self.tokens.weight, labels, averaged=averaged)
        return linear_logits(hidden, self.tokens.weight)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all parameters."""
        for name, parameter in self.named_parameters():
            parameter.copy_(self.initial_value(name, parameter.shape))

    def initial_value(self, name: str, shape: torch.Size) -> Tensor:
        """Normal weights, scaled down where they write to the residual stream (GPT-2), zero biases; fp32, on the CPU.

        They depend on ``torch.initial_seed()``, name and shape, not on the device or the layout.
        """
        if len(shape) == 1:
            return torch.zeros(shape, device="cpu") if name.endswith("bias") else torch.ones(shape, device="cpu")
        residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
        return normal_of(name, shape, self.config.init_std / (math.sqrt(2 * self.config.layers) if residual else 1.0))


def _embedding(rows: int, width: int) -> nn.Embedding:
    # Without initialisation: on the meta device, it makes PyTorch import torch.compile, which takes a second.
    values = torch.empty(rows, width)
    embedding: nn.Embedding = nn.Embedding.from_pretrained(values, freeze=False)
    return embedding


class Block(nn.Module):
    """Attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.hidden)
        self.mlp = Mlp(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden`` to ``hidden``."""
        hidden = hidden + dropout(self.attention(self.attention_norm(hidden)), self.dropout, self.training)
        return hidden + dropout(self.mlp(self.mlp_norm(hidden)), self.dropout, self.training)


class Attention(nn.Module):
    """Causal self-attention.

    The rows of ``qkv`` have the order ``[heads, 3, head_dim]`` as in Megatron-LM, so that a shard of them has whole
    heads; the number of heads follows from the size of its output.
    """

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden`` to ``hidden``."""
        qkv = self.qkv(hidden).unflatten(-1, (-1, 3, self.head_dim))
        context = causal_attention(qkv, self.dropout if self.training else 0.0).flatten(-2)
        output: Tensor = self.output(context)
        return output


class Mlp(nn.Module):
    """Two linear layers with GELU in Megatron-LM's tanh form between them, four times as wide."""

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden`` to ``hidden``."""
        output: Tensor = self.down(F.gelu(self.up(hidden), approximate="tanh"))
        return output
