"""Sizes of a BERT from its settings. No torch here."""

from __future__ import annotations

import math

from recipe_bert_dp.settings import BertPretraining, Sizes
from recipe_core import ModelFacts

PREDICTED = 20 / 128
"""Places for predictions among the tokens of a row, as published: 20 of 128, 80 of 512."""


def facts(config: BertPretraining, sequence: int) -> ModelFacts:
    """Counts for one row of ``sequence`` tokens."""
    sizes, predictions = config.sizes, math.ceil(sequence * PREDICTED)
    inside = _block_activations(sizes.hidden, sizes.intermediate, config.dropout > 0) * sequence
    ends = _end_activations(sizes, config.dropout > 0, sequence, predictions)
    mixed = _mixed_activations(sizes.hidden, config.dropout > 0) * sequence
    mixed_ends = (2 + (config.dropout > 0)) * sequence * sizes.hidden  # a norm's input, its mask, the encoder's output
    cut = _divided_activations(sizes) * sequence
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
    )


def _parameters(sizes: Sizes) -> int:
    """Of the blocks, and beside them: embeddings of words, positions and 2 segments with a norm; the pooler and the
    transform ``h x h`` with a norm; a bias per word; two outputs of the next sentence. The output of words is the
    embedding.
    """
    h = sizes.hidden
    embeddings = (sizes.vocabulary + sizes.positions + 2) * h + 2 * h
    heads = 2 * (h * h + h) + 2 * h + sizes.vocabulary + 2 * (h + 1)
    return sizes.layers * _block_parameters(sizes) + embeddings + heads


def _block_parameters(sizes: Sizes) -> int:
    """Four weights ``h x h``, two ``h x i``, their biases, two norms of 2h."""
    h, i = sizes.hidden, sizes.intermediate
    return 4 * (h * h + h) + 2 * h * i + i + h + 4 * h


def _divided_parameters(sizes: Sizes) -> int:
    """Those of a block that tensor parallelism cuts: all but the norms and the biases that are added to the stream."""
    return _block_parameters(sizes) - 6 * sizes.hidden


def _flops(sizes: Sizes, sequence: int, predictions: int) -> float:
    """Matrix products of forward, times three for backward; only masked places meet the vocabulary."""
    h = sizes.hidden
    block = 2 * sequence * (4 * h * h + 2 * h * sizes.intermediate) + 4 * sequence * sequence * h
    words = 2 * predictions * (h * h + h * sizes.vocabulary)
    following = 2 * (h * h + 2 * h)
    return 3.0 * (sizes.layers * block + words + following)


def _block_activations(h: int, i: int, dropout: bool) -> int:
    """Values that a block keeps per token.

    Inputs of query, key and value (one for the three), of both other linear layers beside the attention and of the
    last one (3h, i), of GELU (i), of two norms (2h), query, key and value (3h), and two masks of dropout. Attention
    keeps nothing that grows with the square of the sequence.
    """
    return (3 + 2 + 3 + 2 * dropout) * h + 2 * i


def _mixed_activations(h: int, dropout: bool) -> int:
    """Bytes that a block keeps per token under autocast beyond 16 bits for each of the above.

    The inputs of two norms, the residual stream, are fp32; so are masks of dropout on a CPU (a byte each elsewhere).
    Query, key and value each take a copy of their own of the fp32 stream, two more than the one above.
    """
    return (2 + 2 + 2 * dropout) * h


def _divided_activations(sizes: Sizes) -> int:
    """Values per token between the matrices of a block that tensor parallelism cuts: query, key and value, and what the
    second matrices take (h, i), and the input of GELU."""
    return 4 * sizes.hidden + 2 * sizes.intermediate


def _end_activations(sizes: Sizes, dropout: bool, sequence: int, predictions: int) -> int:
    """Values that embeddings and heads keep: of the former a norm's input and a mask; the transform's of the latter."""
    return ((2 + dropout) * sequence + 4 * predictions) * sizes.hidden
