"""Parameters, FLOPs and activations of a BERT from its settings. No torch here."""

from __future__ import annotations

import math

from recipe_bert_dp.settings import BertPretraining, BertSizes
from recipe_core import ModelFacts

PREDICTED = 20 / 128
"""Predictions per token of a row, as published: 20 for 128, 80 for 512."""


def facts(config: BertPretraining, sequence: int) -> ModelFacts:
    """Counts for one row of ``sequence`` tokens."""
    sizes, predictions = config.sizes, math.ceil(sequence * PREDICTED)
    inside = _block_activations(sizes.hidden, sizes.intermediate, config.dropout > 0) * sequence
    ends = _end_activations(sizes, config.dropout > 0, sequence, predictions)
    mixed = _mixed_activations(sizes.hidden, config.dropout > 0) * sequence
    mixed_ends = (2 + (config.dropout > 0)) * sequence * sizes.hidden  # input of a norm, its mask, the encoder's output
    cut = _divided_activations(sizes) * sequence
    masks, end_masks = (count * (config.dropout > 0) * sequence * sizes.hidden for count in (2, 1))
    return ModelFacts(
        parameters=_parameters(sizes),
        flops_per_sample=_flops(sizes, sequence, predictions),
        activation_values=sizes.layers * inside + ends,
        recomputed_activation_values=sizes.layers * sequence * sizes.hidden + inside + ends,
        logits_values=predictions * sizes.vocabulary,
        max_sequence=sizes.positions,
        vocabulary=sizes.vocabulary,
        blocks=sizes.layers,
        block_parameters=_block_parameters(sizes),
        divisible={"model.heads": sizes.heads, "model.intermediate": sizes.intermediate},
        divided_parameters=sizes.layers * _divided_parameters(sizes) + sizes.vocabulary * (sizes.hidden + 1),
        divided_activation_values=sizes.layers * cut,
        divided_recomputed_values=cut,
        stream_values=sequence * sizes.hidden,
        mixed_activation_values=sizes.layers * mixed + mixed_ends,
        mixed_recomputed_values=sizes.layers * sequence * sizes.hidden + mixed + mixed_ends,
        dropout_values=sizes.layers * masks + end_masks,
        dropout_recomputed_values=masks + end_masks,
        dropout_mixed_values=sizes.layers * masks + end_masks,
        dropout_mixed_recomputed_values=masks + end_masks,
    )


def _parameters(sizes: BertSizes) -> int:
    # Outside the blocks: embeddings of words, positions and 2 segments with a norm; pooler and transform, h x h each,
    # with a norm; a bias per word; two outputs for the next sentence. The decoder is tied to the word embedding.
    h = sizes.hidden
    embeddings = (sizes.vocabulary + sizes.positions + 2) * h + 2 * h
    heads = 2 * (h * h + h) + 2 * h + sizes.vocabulary + 2 * (h + 1)
    return sizes.layers * _block_parameters(sizes) + embeddings + heads


def _block_parameters(sizes: BertSizes) -> int:
    # Four weights h x h, two h x i, their biases, two norms of 2h.
    h, i = sizes.hidden, sizes.intermediate
    return 4 * (h * h + h) + 2 * h * i + i + h + 4 * h


def _divided_parameters(sizes: BertSizes) -> int:
    # Tensor parallelism shards all but the norms and the biases that are added to the residual stream.
    return _block_parameters(sizes) - 6 * sizes.hidden


def _flops(sizes: BertSizes, sequence: int, predictions: int) -> float:
    # Matrix products of forward, times three for backward; only masked positions have logits.
    h = sizes.hidden
    block = 2 * sequence * (4 * h * h + 2 * h * sizes.intermediate) + 4 * sequence * sequence * h
    words = 2 * predictions * (h * h + h * sizes.vocabulary)
    following = 2 * (h * h + 2 * h)
    return 3.0 * (sizes.layers * block + words + following)


def _block_activations(h: int, i: int, dropout: bool) -> int:
    # Saved per token and block: inputs of the linear layers (h for query, key and value together, h, h, i), of GELU (i)
    # and of two norms (2h); query, key and value (3h); two dropout masks. Attention saves nothing that grows with the
    # square of the sequence.
    return (3 + 2 + 3 + 2 * dropout) * h + 2 * i


def _mixed_activations(h: int, dropout: bool) -> int:
    # Bytes saved per token and block under autocast, in addition to 16 bits for each of the above. The inputs of two
    # norms, the residual stream, are fp32, and so are dropout masks on a CPU (a byte each elsewhere). Query, key and
    # value each copy their fp32 input: two more than the one above.
    return (2 + 2 + 2 * dropout) * h


def _divided_activations(sizes: BertSizes) -> int:
    # Values per token between the sharded matrices of a block: query, key and value (3h), inputs of the second matrices
    # (h, i), and the input of GELU (i).
    return 4 * sizes.hidden + 2 * sizes.intermediate


def _end_activations(sizes: BertSizes, dropout: bool, sequence: int, predictions: int) -> int:
    # Saved outside the blocks: a norm's input and a mask in the embeddings, and the transform of the head.
    return ((2 + dropout) * sequence + 4 * predictions) * sizes.hidden
