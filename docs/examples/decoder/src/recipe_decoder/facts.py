"""Sizes of the model from its settings, for ``recipe check``. No torch here."""

from __future__ import annotations

from recipe_core import ModelFacts
from recipe_decoder.settings import Decoder


def facts(config: Decoder, sequence: int) -> ModelFacts:
    """Counts for one sample of ``sequence`` tokens."""
    width, layers = config.hidden, config.layers
    kv = config.kv_heads * config.head_dim
    matrices = 2 * width * width + 2 * width * kv + 3 * width * config.mlp
    words = config.vocabulary * width
    stream = sequence * width
    cut = 2 * stream + 2 * sequence * kv + 4 * sequence * config.mlp  # query, context, key, value; four in the MLP
    inside = cut + 6 * stream  # each of two norms keeps what it takes, the same normalised, and what it returns
    ends = 4 * stream  # the final norm, and the gradient that the loss computes ahead
    return ModelFacts(
        parameters=words * (1 if config.tied else 2) + width + layers * (matrices + 2 * width),
        flops_per_sample=3.0 * (2 * sequence * (layers * matrices + words) + 4 * sequence**2 * width * layers),
        activation_values=layers * inside + ends,
        recomputed_activation_values=layers * stream + inside + ends,
        logits_values=sequence * config.vocabulary,
        max_sequence=config.positions,
        vocabulary=config.vocabulary,
        blocks=layers,
        block_parameters=matrices + 2 * width,
        divisible={"model.heads": config.heads, "model.kv_heads": config.kv_heads, "model.mlp": config.mlp},
        divided_parameters=words * (1 if config.tied else 2) + layers * matrices,
        divided_activation_values=layers * cut,
        divided_recomputed_values=cut,
        stream_values=stream,
        mixed_activation_values=(7 * layers + 4) * stream,
        mixed_recomputed_values=(layers + 11) * stream,
    )
