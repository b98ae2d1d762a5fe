"""The model as Hugging Face's LlamaForCausalLM: names and config.json. The shapes are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from recipe_core import Adapter, Link, Naming, hf_settings, read_hf_config, require_hf_values
from recipe_decoder.settings import Decoder

_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "mlp": "intermediate_size",
    "positions": "max_position_embeddings",
    "vocabulary": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_scaling": None}
"""Settings of config.json that this model fixes."""
_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


class HuggingFace(Naming):
    """The naming ``hf``."""

    def adapter(self, config: Decoder) -> Adapter:
        """Names of LlamaForCausalLM's, and its config.json."""
        texts = {**_values(config), "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        return Adapter(
            links=tuple(Link(ours=(ours,), theirs=(theirs,)) for ours, theirs in _names(config)),
            ties={"lm_head.weight": "model.embed_tokens.weight"} if config.tied else {},
            ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
            files={"config.json": json.dumps(texts, indent=2, sort_keys=True) + "\n"},
        )

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> dict[str, Any] | None:
        """From config.json; None where there is none, or it is another model's.

        Raises:
            CheckpointError: it is a Llama with something that this model does not have.
        """
        config = read_hf_config(files)
        if config is None or config.get("model_type") != "llama":
            return None
        require_hf_values(config, _FIXED, "Llama", "decoder")
        rope = config.get("rope_parameters") or {}
        require_hf_values(rope, {"rope_type": "default"}, "Llama", "decoder")
        theta = rope.get("rope_theta", config.get("rope_theta", Decoder.theta))
        known = {"tie_word_embeddings": False, "num_key_value_heads": config.get("num_attention_heads"), **config}
        return {**hf_settings(known, _SIZES, "Llama"), "theta": theta}


def _names(config: Decoder) -> Iterator[tuple[str, str]]:
    yield "tokens.weight", "model.embed_tokens.weight"
    for number in range(config.layers):
        for ours, theirs in _BLOCK.items():
            yield f"blocks.{number}.{ours}.weight", f"model.layers.{number}.{theirs}.weight"
    yield "norm.weight", "model.norm.weight"
    if not config.tied:
        yield "head.weight", "lm_head.weight"


def _values(config: Decoder) -> dict[str, Any]:
    return {
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        **_FIXED,
        "head_dim": config.head_dim,
        "initializer_range": config.init_std,
        "rope_theta": config.theta,  # transformers 4
        "rope_parameters": {"rope_type": "default", "rope_theta": config.theta},  # transformers 5
        "bos_token_id": None,
        "eos_token_id": None,
    }
