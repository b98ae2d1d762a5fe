"""Sizes of the model, and how it is sharded. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from recipe_core import DataFacts, ModelFacts

from recipe_new_plugin.settings import Decoder, Steps


def model_facts(config: Decoder, sequence: int) -> ModelFacts:
    """Count for one sample of ``sequence`` tokens, from which `recipe check` estimates memory and work.

    A block has weights of ``h x 3h``, ``h x h``, ``h x 4h`` and ``4h x h``, and two norms of ``h``. For backward
    it keeps what its norms (h, h), matrices (h, h, h, 4h), attention (3h) and GELU (4h) take.
    """
    h, layers = config.hidden, config.layers
    block = 12 * h * h + 2 * h
    kept, ends = 16 * h * sequence, 2 * h * sequence
    products = layers * 12 * h * h + config.vocabulary * h
    return ModelFacts(
        parameters=(2 * config.vocabulary + config.positions + 1) * h + layers * block,
        flops_per_sample=6.0 * sequence * products + 12.0 * layers * sequence * sequence * h,
        activation_values=layers * kept + ends,
        recomputed_activation_values=layers * h * sequence + kept + ends,
        logits_values=sequence * config.vocabulary,
        max_sequence=config.positions,
        vocabulary=config.vocabulary,
        blocks=layers,
        block_parameters=block,
        divisible={"model.heads": config.heads},
        divided_parameters=2 * config.vocabulary * h + layers * 12 * h * h,
        divided_activation_values=layers * 12 * h * sequence,
        divided_recomputed_values=12 * h * sequence,
        stream_values=sequence * h,
    )


def tensor_plan(config: Decoder) -> Mapping[str, str]:
    """Return the role of each submodule under tensor parallelism (layout=tp)."""
    return {
        "tokens": "vocabulary_in",
        "positions": "sequence",
        "blocks.*.attention_norm": "sequence",
        "blocks.*.attention": "split",
        "blocks.*.attention.qkv": "column",
        "blocks.*.attention.out": "row",
        "blocks.*.mlp_norm": "sequence",
        "blocks.*.up": "column",
        "blocks.*.down": "row",
        "norm": "replicated",
        "output": "vocabulary_out",
    }


def data_facts(config: Steps) -> DataFacts:
    """Return the facts; samples are generated on demand."""
    return DataFacts(sequence=config.sequence, vocabulary=config.vocabulary)
