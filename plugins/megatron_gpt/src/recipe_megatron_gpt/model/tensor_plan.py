"""The tensor-parallel plan of GPT. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from recipe_megatron_gpt.settings import Gpt


def plan(config: Gpt) -> Mapping[str, str]:
    """Shards of whole attention heads, of the MLP's width and of the vocabulary, as in Megatron-LM.

    The output is tied to ``tokens``, and needs the whole sequence from the final norm.
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
