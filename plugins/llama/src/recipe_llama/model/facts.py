"""Sizes of the model from its settings. No torch here."""

from __future__ import annotations

from recipe_core import ModelFacts
from recipe_llama.settings import Llama


def facts(config: Llama, sequence: int) -> ModelFacts:
    """Counts for one sample of ``sequence`` tokens."""
    width, layers = config.hidden, config.layers
    queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width
    matrices = 2 * width * queries + 2 * width * keys + 3 * width * config.mlp
    words = config.vocabulary * width
    block, divided = matrices + _vectors(config), matrices + _divided_biases(config)
    stream = sequence * width
    # Query, context, key and value; four in the MLP. A norm of queries and keys keeps them as they are and normalised.
    cut = sequence * (2 * queries + 2 * keys + 4 * config.mlp + 2 * config.qk_norm * (queries + keys))
    inside = cut + 6 * stream  # each of two norms keeps its input, the same normalised, and its output
    ends = 4 * stream  # the final norm, and the gradient that the loss computes ahead
    return ModelFacts(
        parameters=words * (1 if config.tied else 2) + width + layers * block,
        flops_per_sample=3.0 * (2 * sequence * (layers * matrices + words) + _attention_flops(config, sequence)),
        attention_flops=3.0 * _attention_flops(config, sequence),
        activation_values=layers * inside + ends,
        recomputed_activation_values=layers * stream + inside + ends,
        logits_values=sequence * config.vocabulary,
        max_sequence=config.longest,
        vocabulary=config.vocabulary,
        blocks=layers,
        block_parameters=block,
        divisible={"model.heads": config.heads, "model.kv_heads": config.kv_heads, "model.mlp": config.mlp},
        divided_parameters=words * (1 if config.tied else 2) + layers * divided,
        divided_activation_values=layers * cut,
        divided_recomputed_values=cut,
        stream_values=stream,
        mixed_activation_values=(7 * layers + 4) * stream,
        mixed_recomputed_values=(layers + 11) * stream,
    )


def _attention_flops(config: Llama, sequence: int) -> int:
    """Products of the attention in forward; times three to include backward.

    Causal attention counts as full attention, as in Narayanan and others (2021), appendix, and so does a window.
    """
    return 4 * sequence**2 * config.heads * config.head_width * config.layers


def _vectors(config: Llama) -> int:
    """Norms and biases of a block."""
    output_bias = config.hidden if config.attention_bias == "all" else 0
    return 2 * config.hidden + 2 * config.qk_norm * config.head_width + _divided_biases(config) + output_bias


def _divided_biases(config: Llama) -> int:
    """Biases of query, key and value in a block; tensor parallelism cuts them with their matrices."""
    return 0 if config.attention_bias == "none" else (config.heads + 2 * config.kv_heads) * config.head_width
