"""The tensor plan: a role for each submodule that holds parameters. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from recipe_decoder.settings import Decoder


def plan(config: Decoder) -> Mapping[str, str]:
    """Whole heads of the attention, shares of the MLP's width and of the vocabulary."""
    return {
        "tokens": "vocabulary_in",
        "blocks.*.attention_norm": "sequence",
        "blocks.*.attention": "split",
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
