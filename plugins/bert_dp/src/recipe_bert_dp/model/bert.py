"""BERT pre-training: masked words and next sentence, with the parameters of Hugging Face's BertForPreTraining."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertForPreTraining

from recipe_bert_dp.model.layer import Layer
from recipe_bert_dp.settings import BertPretraining
from recipe_core import Batch, Loss, dropout, groups_of, losses_and_hits, normal_of


class BertOutput(NamedTuple):
    """Losses and hits of a micro batch, per prediction; values of unused places are undefined."""

    masked_losses: Tensor
    """fp32 ``[rows, predictions]``."""
    masked_hits: Tensor
    """True where the most likely word is the label, bool ``[rows, predictions]``."""
    next_losses: Tensor
    """fp32 ``[rows, slots]``; a plain row has one slot."""
    next_hits: Tensor
    """bool ``[rows, slots]``."""


def build(config: BertPretraining) -> tuple[BertPretrainingModel, Loss]:
    """Build the model on the default device, initialised from torch's initial seed, and its loss.

    Under ``with torch.device("meta")`` it has no values; call ``to_empty`` and
    :meth:`BertPretrainingModel.reset_parameters` later.
    """
    with torch.device("meta"):  # skips the initialisation by transformers
        module = BertPretrainingModel(bert_config(config))
    device = torch.get_default_device()
    if device.type != "meta":
        module.to_empty(device=device)
        module.reset_parameters()
    return module, loss


def example(config: BertPretraining) -> Batch:
    """Two plain rows of up to 32 tokens from all over the vocabulary, with as many predictions as fit."""
    sizes = config.sizes
    length = min(32, sizes.positions)
    ids = (torch.arange(2 * length) * 7919 % sizes.vocabulary).view(2, length)
    places = torch.arange(1, length).expand(2, -1)
    return {
        "input_ids": ids, "input_mask": torch.ones_like(ids),
        "segment_ids": (torch.arange(length) >= length // 2).long().expand(2, -1),
        "masked_lm_positions": places, "masked_lm_ids": ids.flip(1)[:, 1:],
        "next_sentence_labels": torch.tensor([0, 1]),
    }  # fmt: skip


def bert_config(config: BertPretraining) -> BertConfig:
    """The settings as Hugging Face's BertConfig, as in the config.json of a checkpoint."""
    sizes = config.sizes
    return BertConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.intermediate,
        max_position_embeddings=sizes.positions,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        initializer_range=config.init_std,
        architectures=["BertForPreTraining"],
    )


def loss(output: BertOutput, batch: Batch) -> Mapping[str, Tensor]:
    """Mean losses over the predictions and over the sequences of a micro batch; ``loss`` is their sum.

    ``real_tokens`` (without padding) and ``sequences`` (a packed row has several) are counts, not means.
    """
    predicted = (batch["masked_lm_positions"] != 0).float()
    weights = batch.get("next_sentence_weights")
    sequences = torch.ones_like(output.next_losses) if weights is None else weights.float()
    masked, following = _mean(output.masked_losses, predicted), _mean(output.next_losses, sequences)
    return {
        "loss": masked + following,
        "mlm_loss": masked,
        "nsp_loss": following,
        "mlm_accuracy": _mean(output.masked_hits, predicted),
        "nsp_accuracy": _mean(output.next_hits, sequences),
        "real_tokens": (batch["input_mask"] != 0).sum().float(),
        "sequences": sequences.sum(),
    }


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp(min=1)


class BertPretrainingModel(BertForPreTraining):  # type: ignore[misc]
    """Hugging Face's model with a forward for batches of shards, which computes logits at masked positions only.

    Parameters, their names and ties are those of the parent class, so that a file of its weights is a checkpoint of
    Hugging Face.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert.encoder.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.encoded = nn.Identity()
        """Output of the encoder; a layout that shards the sequence gathers it here."""

    def forward(self, batch: Batch) -> BertOutput:
        """Losses and hits of all predictions.

        Args:
            batch: int64 tensors under the names of the shards' arrays. All rows: ``input_ids``, ``input_mask``,
                ``segment_ids`` ``[rows, sequence]``; ``masked_lm_positions``, ``masked_lm_ids``
                ``[rows, predictions]``, unused places at position 0. Plain rows: ``next_sentence_labels`` ``[rows]``.
                Packed rows, where ``input_mask`` numbers the sequences of a row from 1: ``positions``
                ``[rows, sequence]``; ``next_sentence_positions``, ``next_sentence_labels`` ``[rows, slots]``.
        """
        hidden = self._encode(batch)
        masked_losses, masked_hits = self._masked(hidden, batch)
        next_losses, next_hits = self._next(hidden, batch)
        return BertOutput(masked_losses, masked_hits, next_losses, next_hits)

    def masked_logits(self, batch: Batch) -> Tensor:
        """Logits ``[rows, predictions, vocabulary]`` at ``masked_lm_positions`` of a batch without labels."""
        decoder = self.cls.predictions.decoder
        return F.linear(self._decoder_inputs(self._encode(batch), batch), decoder.weight, decoder.bias)

    def _encode(self, batch: Batch) -> Tensor:
        hidden = self._embed(batch)
        groups = groups_of(batch["input_mask"])
        for layer in self.bert.encoder.layer:
            hidden = layer(hidden, groups)
        encoded: Tensor = self.encoded(hidden)
        return encoded

    def _embed(self, batch: Batch) -> Tensor:
        parts, ids = self.bert.embeddings, batch["input_ids"]
        positions = batch["positions"] if "positions" in batch else torch.arange(ids.shape[1], device=ids.device)
        hidden = parts.word_embeddings(ids) + parts.token_type_embeddings(batch["segment_ids"])
        hidden = parts.LayerNorm(hidden + parts.position_embeddings(positions))
        return dropout(hidden, parts.dropout.p, self.training)

    def _masked(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        decoder = self.cls.predictions.decoder
        return losses_and_hits(
            self._decoder_inputs(hidden, batch), decoder.weight, batch["masked_lm_ids"], decoder.bias
        )

    def _decoder_inputs(self, hidden: Tensor, batch: Batch) -> Tensor:
        # Inputs of the decoder, at the masked positions only.
        transform = self.cls.predictions.transform
        inputs: Tensor = transform.LayerNorm(F.gelu(transform.dense(_at(hidden, batch["masked_lm_positions"]))))
        return inputs

    def _next(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        labels = batch["next_sentence_labels"]
        if "next_sentence_positions" in batch:
            first = _at(hidden, batch["next_sentence_positions"])
        else:
            first, labels = hidden[:, :1], labels[:, None]
        logits = self.cls.seq_relationship(torch.tanh(self.bert.pooler.dense(first))).float()
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape).clone()
        return losses, logits.argmax(-1) == labels

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # Called by to, to_empty and others, some of which copy each use of a tied parameter.
        super()._apply(fn, recurse)
        head = self.cls.predictions
        head.decoder.weight, head.decoder.bias = self.bert.embeddings.word_embeddings.weight, head.bias
        return self

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all parameters and buffers."""
        for name, tensor in chain(self.named_parameters(), self.named_buffers()):
            tensor.copy_(self.initial_value(name, tensor.shape))

    def initial_value(self, name: str, shape: torch.Size) -> Tensor:
        """Initial value of a parameter or buffer: normal weights, zero biases and padding, ones in norms; fp32 on the
        CPU.

        Weights depend on ``torch.initial_seed()``, name and shape, not on the device or the rank's shard.
        """
        if name.endswith("position_ids"):
            return torch.arange(shape[-1], device="cpu").expand(shape)
        if name.endswith("token_type_ids"):
            return torch.zeros(shape, dtype=torch.int64, device="cpu")
        if len(shape) == 1:
            return torch.zeros(shape, device="cpu") if name.endswith("bias") else torch.ones(shape, device="cpu")
        value = normal_of(name, shape, self.config.initializer_range)
        if name.endswith("word_embeddings.weight"):
            value[self.config.pad_token_id] = 0
        return value


def _at(hidden: Tensor, places: Tensor) -> Tensor:
    # [rows, sequence, hidden] at places [rows, count].
    return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
