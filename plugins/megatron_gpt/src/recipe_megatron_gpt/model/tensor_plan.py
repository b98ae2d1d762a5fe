"""The tensor-parallel plan of GPT. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from recipe_megatron_gpt.settings import Gpt


def plan(config: Gpt) -> Mapping[str, str]:
    """Whole heads of the attention, parts of the MLP's width and of the vocabulary, as Megatron-LM cuts them.

    The output is tied to ``tokens``; the final norm gives it the whole sequence.
    """
    return {
        "tokens": "vocabulary_in",
        "positions": "sequence",
        "blocks.*.attention_norm": "sequence",
        "blocks.*.attention": "split",
        "blocks.*.attention.qkv": "column",
        "blocks.*.attention.output": "row",
        "blocks.*.mlp_norm": "sequence",
        "blocks.*.mlp.up": "column",
        "blocks.*.mlp.down": "row",
        "norm": "replicated",
    }
