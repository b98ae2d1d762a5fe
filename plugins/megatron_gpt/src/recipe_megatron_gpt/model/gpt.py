"""GPT as Megatron-LM trains it: learned positions, pre-norm blocks, GELU, biases, output tied to the embedding."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import (
    Batch,
    BlockCache,
    Documents,
    KeyValueCache,
    Loss,
    causal_attention,
    document_attention,
    document_positions,
    documents_of,
    dropout,
    grouped_query_attention,
    linear_cross_entropy,
    linear_logits,
    loss_weights,
    masked_mean_loss,
    normal_of,
)
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
    return module, masked_mean_loss


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
            batch: ``tokens``, int64 ``[batch, sequence]``, and optional ``labels``, the next tokens. With
                ``document_ids``, each document is computed as if it were alone, see :mod:`recipe_core.ops.documents`.
            hidden: output of the previous pipeline stage, ``[batch, sequence, hidden]``; None in the first.

        Returns:
            fp32 losses ``[batch, sequence]`` or logits ``[batch, sequence, vocabulary]``; ``hidden`` of a pipeline
            stage that is not the last.
        """
        ids = batch.get("document_ids")
        dropped = self.config.attention_dropout if self.training else 0.0
        documents = None if ids is None else documents_of(ids, dropout=dropped)
        if hidden is None:
            tokens = batch["tokens"]
            in_row = torch.arange(tokens.shape[1], device=tokens.device)
            positions = in_row if ids is None else document_positions(ids)
            hidden = self.tokens(tokens) + self.positions(positions)
            hidden = dropout(hidden, self.config.dropout, self.training)
        for block in self.blocks:
            if block is not None:
                hidden = block(hidden, documents)
        if self.norm is None:
            return hidden
        hidden = self.norm(hidden)
        if "labels" in batch:
            labels, weights = batch["labels"], loss_weights(batch)
            return linear_cross_entropy(hidden, self.tokens.weight, labels, averaged=True, weights=weights)
        return linear_logits(hidden, self.tokens.weight)

    def next_logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Logits ``[vocabulary]`` after ``tokens``, ``[1, length]``, of which the first ones are in ``cache``."""
        places = torch.arange(cache.length, tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens[:, cache.length :]) + self.positions(places)
        for number, block in enumerate(self.blocks):
            hidden = block(hidden, cache=cache.block(number))
        cache.length = tokens.shape[1]
        return F.linear(self.norm(hidden[0, -1]), self.tokens.weight)

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

    def forward(self, hidden: Tensor, documents: Documents | None = None, cache: BlockCache | None = None) -> Tensor:
        """``hidden`` to ``hidden``; for ``documents`` and ``cache`` see :class:`Attention`."""
        attended = self.attention(self.attention_norm(hidden), documents, cache)
        hidden = hidden + dropout(attended, self.dropout, self.training)
        return hidden + dropout(self.mlp(self.mlp_norm(hidden)), self.dropout, self.training)


class Attention(nn.Module):
    """Causal self-attention, within each of ``documents`` if there are any.

    The rows of ``qkv`` have the order ``[heads, 3, head_dim]`` as in Megatron-LM, so that a shard of them has whole
    heads; the number of heads follows from the size of its output.
    """

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)

    def forward(self, hidden: Tensor, documents: Documents | None = None, cache: BlockCache | None = None) -> Tensor:
        """``hidden`` to ``hidden``.

        Args:
            hidden: ``[batch, sequence, hidden]``.
            documents: of the rows, each of which is attended to by itself; None: each row is one.
            cache: in generation, keys and values of the tokens before.
        """
        qkv = self.qkv(hidden).unflatten(-1, (-1, 3, self.head_dim))
        dropped = self.dropout if self.training else 0.0
        if cache is not None:
            query, key, value = (part.transpose(1, 2) for part in qkv.unbind(3))
            context = grouped_query_attention(query, *cache.extend(key, value)).transpose(1, 2)
        elif documents is not None:
            query, key, value = qkv.unbind(3)
            context = document_attention(query, key, value, documents, dropped)
        else:
            context = causal_attention(qkv, dropped)
        output: Tensor = self.output(context.flatten(-2))
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
