"""Sizes of a GPT from its settings. No torch here."""

from __future__ import annotations

from recipe_core import ModelFacts
from recipe_megatron_gpt.settings import Gpt


def facts(config: Gpt, sequence: int) -> ModelFacts:
    """Counts for one sample of ``sequence`` tokens."""
    h = config.hidden
    cut = _divided_activations(config) * sequence
    ends = (2 + (config.dropout > 0)) * sequence * config.hidden  # the final norm's input and output, a dropout mask
    inside = _block_activations(config) * sequence
    fp32 = 2 * h * sequence  # a block's norms read the residual stream, which autocast leaves in fp32
    fp32_ends = (1 + (config.dropout > 0)) * h * sequence  # the final norm's input, the mask of the embeddings
    masks, end_masks = (count * (config.dropout > 0) * sequence * h for count in (2, 1))
    return ModelFacts(
        parameters=_parameters(config),
        flops_per_sample=3.0 * (_linear_flops(config, sequence) + _attention_flops(config, sequence)),
        attention_flops=3.0 * _attention_flops(config, sequence),
        activation_values=config.layers * inside + ends,
        recomputed_activation_values=config.layers * sequence * config.hidden + inside + ends,
        logits_values=sequence * config.vocabulary,
        max_sequence=config.positions,
        vocabulary=config.vocabulary,
        blocks=config.layers,
        block_parameters=12 * h * h + 13 * h,
        divisible={"model.heads": config.heads},
        divided_parameters=config.vocabulary * h + config.layers * (12 * h * h + 7 * h),
        divided_activation_values=config.layers * cut,
        divided_recomputed_values=cut,
        stream_values=sequence * h,
        mixed_activation_values=config.layers * fp32 + fp32_ends,
        mixed_recomputed_values=config.layers * sequence * h + fp32 + fp32_ends,
        dropout_values=config.layers * masks + end_masks,
        dropout_recomputed_values=masks + end_masks,
        dropout_mixed_values=end_masks,  # those of the blocks mask outputs of products, in 16 bits
        dropout_mixed_recomputed_values=end_masks,
    )


def _parameters(config: Gpt) -> int:
    """Per block: weights ``h x 3h``, ``h x h``, ``h x 4h``, ``4h x h``, their 9h biases, and two norms of 2h."""
    h = config.hidden
    return (config.vocabulary + config.positions + 2) * h + config.layers * (12 * h * h + 13 * h)


def _linear_flops(config: Gpt, sequence: int) -> float:
    """Matrix products of forward with weights; times three to include backward.

    Narayanan and others, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021),
    appendix, without its term for recomputation.
    """
    h = config.hidden
    return 2.0 * sequence * (12 * h * h * config.layers + config.vocabulary * h)


def _attention_flops(config: Gpt, sequence: int) -> float:
    """The other products of forward, from the same source: causal attention counts as full attention."""
    return 4.0 * sequence * sequence * config.hidden * config.layers


def _block_activations(config: Gpt) -> int:
    """Values that a block keeps per token.

    The inputs of two norms, four linear layers (h, h, h, 4h) and GELU (4h), query, key and value (3h), and two dropout
    masks. Attention keeps nothing that grows with the square of the sequence. Compare Korthikanti and others,
    "Reducing Activation Recomputation in Large Transformer Models" (2022), which has 17h 16-bit values for the same.
    """
    return (2 + 7 + 4 + 3 + 2 * (config.dropout > 0)) * config.hidden


def _divided_activations(config: Gpt) -> int:
    """The part of these between tensor-parallel matrices: query, key, value, the inputs of the output layers of
    attention and MLP (h, 4h), and the input of GELU (4h)."""
    return (3 + 1 + 4 + 4) * config.hidden
