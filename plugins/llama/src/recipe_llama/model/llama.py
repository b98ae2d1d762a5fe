"""The module and its loss: pre-norm blocks of grouped-query attention with rotary positions, and SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import (
    Batch,
    BlockCache,
    Documents,
    KeyValueCache,
    Loss,
    document_attention,
    documents_of,
    grouped_query_attention,
    linear_cross_entropy,
    linear_logits,
    loss_weights,
    masked_mean_loss,
    normal_of,
)
from recipe_llama.model.rotary import document_rotation, rotate, rotation
from recipe_llama.settings import Llama


def build(config: Llama) -> tuple[LlamaModel, Loss]:
    """The model on the default device, initialised from torch's initial seed, and its loss.

    Under ``with torch.device("meta")`` it has no values.
    """
    with torch.device("meta"):  # skips the initialisation by nn.Linear
        module = LlamaModel(config)
    device = torch.get_default_device()
    if device.type != "meta":
        module.to_empty(device=device)
        module.tie()
        module.reset_parameters()
    return module, masked_mean_loss


def example(config: Llama) -> Batch:
    """Two samples of up to 32 tokens from all of the vocabulary, without labels: the model returns logits."""
    length = min(32, config.positions)
    return {"tokens": (torch.arange(2 * length) * 7919 % config.vocabulary).view(2, length)}


class LlamaModel(nn.Module):
    """A decoder-only transformer. In its parts, ``hidden`` has the shape ``[batch, sequence, hidden]``."""

    def __init__(self, config: Llama) -> None:
        super().__init__()
        self.config = config
        self.tokens: nn.Embedding = nn.Embedding.from_pretrained(  # without initialisation
            torch.empty(config.vocabulary, config.hidden), freeze=False
        )
        self.blocks = nn.ModuleList(LlamaBlock(config, config.window_of(number)) for number in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the embedding the output matrix, if the settings say so."""
        if self.config.tied:
            self.head.weight = self.tokens.weight

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
        tokens = batch["tokens"]
        if hidden is None:
            hidden = self.tokens(tokens)
        turns, documents = self._of_documents(batch)
        for number, block in enumerate(self.blocks):
            if block is not None:
                hidden = block(hidden, turns, documents.get(self.config.window_of(number)))
        if self.norm is None:
            return hidden
        hidden = self.norm(hidden)
        if "labels" in batch:
            labels, weights = batch["labels"], loss_weights(batch)
            return linear_cross_entropy(hidden, self.head.weight, labels, averaged=True, weights=weights)
        return linear_logits(hidden, self.head.weight)

    def _of_documents(self, batch: Batch) -> tuple[Tensor, dict[int | None, Documents]]:
        """The rotation of each token, and the documents for each window of the blocks, if there are documents."""
        if "document_ids" not in batch:
            length, device = batch["tokens"].shape[1], batch["tokens"].device
            return rotation(self.config, torch.arange(length, device=device), length), {}
        ids = batch["document_ids"]
        windows = {self.config.window_of(number) for number, block in enumerate(self.blocks) if block is not None}
        return document_rotation(self.config, ids), {window: documents_of(ids, window) for window in windows}

    def next_logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Logits ``[vocabulary]`` after ``tokens``, ``[1, length]``, of which the first ones are in ``cache``."""
        length = tokens.shape[1]
        if self.config.rope_type == "dynamic" and length > self.config.positions:
            cache.length = 0  # each token changes the angles of all
        turns = rotation(self.config, torch.arange(cache.length, length, device=tokens.device), length)
        hidden = self.tokens(tokens[:, cache.length :])
        for number, block in enumerate(self.blocks):
            hidden = block(hidden, turns, cache=cache.block(number))
        cache.length = length
        return F.linear(self.norm(hidden[0, -1]), self.head.weight)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all parameters."""
        for name, parameter in self.named_parameters():
            parameter.copy_(self.initial_value(name, parameter.shape))

    def initial_value(self, name: str, shape: torch.Size) -> Tensor:
        """Normal weights, ones for norms, zero biases; fp32, on the CPU.

        They depend on ``torch.initial_seed()``, name and shape, not on the device or the layout.
        """
        if len(shape) == 1:
            return torch.zeros(shape, device="cpu") if name.endswith("bias") else torch.ones(shape, device="cpu")
        return normal_of(name, shape, self.config.init_std)


class LlamaBlock(nn.Module):
    """Attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, config: Llama, window: int | None) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.attention = LlamaAttention(config, window)
        self.mlp_norm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.mlp = SwiGlu(config)

    def forward(
        self, hidden: Tensor, turns: Tensor, documents: Documents | None = None, cache: BlockCache | None = None
    ) -> Tensor:
        """``hidden`` to ``hidden``; for the other arguments see :class:`LlamaAttention`."""
        hidden = hidden + self.attention(self.attention_norm(hidden), turns, documents, cache)
        output: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return output


class LlamaAttention(nn.Module):
    """Causal self-attention; several heads of the queries share one of keys and values.

    The number of heads follows from the sizes of the outputs, which under tensor parallelism are shards of whole heads.
    """

    def __init__(self, config: Llama, window: int | None) -> None:
        super().__init__()
        width, inner = config.head_width, config.heads * config.head_width
        bias = config.attention_bias != "none"
        self.head_dim, self.window = width, window
        self.query = nn.Linear(config.hidden, inner, bias)
        self.key = nn.Linear(config.hidden, config.kv_heads * width, bias)
        self.value = nn.Linear(config.hidden, config.kv_heads * width, bias)
        self.output = nn.Linear(inner, config.hidden, config.attention_bias == "all")
        self.query_norm = nn.RMSNorm(width, config.norm_eps) if config.qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(width, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(
        self, hidden: Tensor, turns: Tensor, documents: Documents | None = None, cache: BlockCache | None = None
    ) -> Tensor:
        """``hidden`` to ``hidden``.

        Args:
            hidden: ``[batch, sequence, hidden]``.
            turns: the :func:`rotation` at its positions.
            documents: of the rows, with the window of this attention; None: each row is one.
            cache: in generation, keys and values of the tokens before.
        """
        query, key, value = (
            matrix(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for matrix in (self.query, self.key, self.value)
        )
        query, key = rotate(self.query_norm(query), turns), rotate(self.key_norm(key), turns)
        if cache is not None:
            key, value = cache.extend(key, value)
        if documents is None:
            context = grouped_query_attention(query, key, value, self.window).transpose(1, 2)
        else:
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))
            context = document_attention(query, key, value, documents, 0.0)
        output: Tensor = self.output(context.flatten(-2))
        return output


class SwiGlu(nn.Module):
    """``down(silu(gate) * up)`` (Shazeer, 2020)."""

    def __init__(self, config: Llama) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.mlp, bias=False)
        self.up = nn.Linear(config.hidden, config.mlp, bias=False)
        self.down = nn.Linear(config.mlp, config.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden`` to ``hidden``."""
        output: Tensor = self.down(F.silu(self.gate(hidden)) * self.up(hidden))
        return output
