"""The model as Hugging Face's Llama, Qwen2, Qwen3 and Mistral: names and config.json. The shapes are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from recipe_core import Adapter, CheckpointError, Link, Naming, hf_settings, read_hf_config, require_hf_values
from recipe_llama.model.rope_config import read_rope, rope_parameters
from recipe_llama.settings import Llama

KINDS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Families by their ``model_type``; SmolLM is a Llama, Qwen 2.5 a Qwen2."""
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
_FIXED = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}
"""Settings of config.json that this model fixes; the values are also the defaults of config.json."""
_DEFAULTS: dict[str, Any] = {
    "tie_word_embeddings": False,
    "head_dim": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "layer_types": None,
}
"""Values of settings that a config.json lacks, of all families."""
_DEFAULTS_OF: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": None},
    "mistral": {"sliding_window": 4096},
    "qwen2": {"sliding_window": 4096},
    "qwen3": {"sliding_window": 4096, "head_dim": 128},
}
_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_QK_NORMS = ("attention.query_norm", "attention.key_norm")
_BIASES = {
    "none": (),
    "qkv": ("attention.query", "attention.key", "attention.value"),
    "all": ("attention.query", "attention.key", "attention.value", "attention.output"),
}

_BIAS_OF = {"qwen2": "qkv", "mistral": "none"}


class HuggingFace(Naming):
    """The naming ``hf`` of the model ``llama``."""

    def adapter(self, config: Llama) -> Adapter:
        """Names of the family that has these settings, and its config.json.

        Raises:
            CheckpointError: none has them.
        """
        values = {**_values(config), **_family(config)}
        values["architectures"] = [f"{KINDS[values['model_type']]}ForCausalLM"]
        return Adapter(
            links=tuple(Link(ours=(ours,), theirs=(theirs,)) for ours, theirs in _names(config)),
            ties={"lm_head.weight": "model.embed_tokens.weight"} if config.tied else {},
            ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
            files={"config.json": json.dumps(values, indent=2, sort_keys=True) + "\n"},
        )

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> dict[str, Any] | None:
        """Settings from config.json; None if there is none, or it is of another family.

        Raises:
            CheckpointError: the model has a feature that this one lacks.
        """
        config = read_hf_config(files) or {}
        kind = str(config.get("model_type"))
        if kind not in KINDS:
            return None
        require_hf_values(config, _FIXED, KINDS[kind], "llama")
        known = {**_DEFAULTS, **_DEFAULTS_OF.get(kind, {}), **config}
        if known.get("num_key_value_heads", 0) is None:
            known["num_key_value_heads"] = known.get("num_attention_heads")
        sizes = hf_settings(known, _SIZES, KINDS[kind])
        return {
            **sizes,
            "head_dim": known["head_dim"] or sizes["hidden"] // sizes["heads"],
            **_attention(known, kind, sizes["layers"]),
            **read_rope(config, KINDS[kind], sizes["positions"]),
        }


def _names(config: Llama) -> Iterator[tuple[str, str]]:
    yield "tokens.weight", "model.embed_tokens.weight"
    biases = _BIASES[config.attention_bias]
    for number in range(config.layers):
        for ours, theirs in _BLOCK.items():
            if ours in _QK_NORMS and not config.qk_norm:
                continue
            for kind in ("weight", "bias") if ours in biases else ("weight",):
                yield f"blocks.{number}.{ours}.{kind}", f"model.layers.{number}.{theirs}.{kind}"
    yield "norm.weight", "model.norm.weight"
    if not config.tied:
        yield "head.weight", "lm_head.weight"


def _values(config: Llama) -> dict[str, Any]:
    return {
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        **{key: value for key, value in _FIXED.items() if value is not None and key != "partial_rotary_factor"},
        "head_dim": config.head_width,
        "initializer_range": config.init_std,
        **rope_parameters(config),
        # The defaults belong to the families' own vocabularies; generation takes them from the tokenizer.
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _family(config: Llama) -> dict[str, Any]:
    """The ``model_type`` of the family with these biases, norms and windows, and its settings for them."""
    bias, span = config.attention_bias, config.resolved()["window"]
    windowed = span is not None
    window = {
        "use_sliding_window": windowed,
        "sliding_window": span,
        "max_window_layers": config.window_from if windowed else config.layers,
    }
    if config.qk_norm:
        if bias != "qkv":
            return {"model_type": "qwen3", "attention_bias": bias == "all", **window}
    elif bias == "qkv":
        return {"model_type": "qwen2", **window}
    elif not windowed and config.hidden % config.heads == 0:
        return {"model_type": "llama", "attention_bias": bias == "all"}
    elif bias == "none" and (config.window_from == 0 or not windowed):
        return {"model_type": "mistral", "sliding_window": span}
    raise CheckpointError(
        f"no family of Hugging Face's has the model's settings qk_norm={str(config.qk_norm).lower()}, "
        f"attention_bias={bias}, window={config.window} and window_from={config.window_from} together"
    )


def _attention(config: Mapping[str, Any], kind: str, layers: int) -> dict[str, Any]:
    """Settings of biases, norms and windows; ``config`` has the family's defaults."""
    bias = "all" if config.get("attention_bias") else "none"
    if kind in _BIAS_OF:  # without a setting for it
        bias = _BIAS_OF[kind]
        require_hf_values(config, {"attention_bias": bias == "qkv"}, KINDS[kind], "llama")
    window, first = config["sliding_window"], 0
    if kind in ("qwen2", "qwen3"):
        window = window if config["use_sliding_window"] else None
        first = config["max_window_layers"]
    elif kind == "llama":
        require_hf_values(config, {"sliding_window": None}, KINDS[kind], "llama")
    windowed = [window is not None and number >= first for number in range(layers)]
    if config["layer_types"] is not None:
        types = ["sliding_attention" if has else "full_attention" for has in windowed]
        require_hf_values(config, {"layer_types": types}, KINDS[kind], "llama")
    return {
        "qk_norm": kind == "qwen3",
        "attention_bias": bias,
        "window": window if any(windowed) else None,
        "window_from": first if any(windowed) else 0,
    }
