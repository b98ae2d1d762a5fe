"""The tensor-parallel plan. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from recipe_llama.settings import Llama


def plan(config: Llama) -> Mapping[str, str]:
    """Shards of whole attention heads, of the MLP's width and of the vocabulary.

    Norms of queries and keys have no role of their own: they are inside the attention, and each rank normalises its
    heads.
    """
    return {
        "tokens": "vocabulary_in",
        "blocks.*.attention_norm": "sequence",
        "blocks.*.attention": "split(hidden)",
        "blocks.*.attention.query": "column",
        "blocks.*.attention.key": "column",
        "blocks.*.attention.value": "column",
        "blocks.*.attention.output": "row",
        "blocks.*.mlp_norm": "sequence",
        "blocks.*.mlp": "split",
        "blocks.*.mlp.gate": "column",
        "blocks.*.mlp.up": "column",
        "blocks.*.mlp.down": "row",
        "norm": "replicated",
        "head": "vocabulary_out",
    }
