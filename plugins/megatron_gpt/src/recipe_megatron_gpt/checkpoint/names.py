"""Names of a transformer's tensors in Megatron: those of megatron-core, and the older ones.

Adapters use megatron-core's (``decoder.layers.0.mlp.linear_fc1.weight``). Older files are nested dicts
(``language_model``, then ``encoder`` or ``transformer``), whose flattened names are converted to megatron-core's and
back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core import Lazy
from recipe_core.settings.fill import flat

LAYER = re.compile(r"^(decoder\.layers\.)(\d+)(\..+)$")
_IN_LAYER = {
    "self_attention.linear_qkv": "self_attention.query_key_value",
    "self_attention.linear_proj": "self_attention.dense",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc1": "mlp.dense_h_to_4h",
    "mlp.linear_fc2": "mlp.dense_4h_to_h",
}
_OUTSIDE = {
    "embedding.": "language_model.embedding.",
    "decoder.": "language_model.encoder.",
    "output_layer.weight": "word_embeddings_for_head.weight",
}
_SPELLINGS = (
    (re.compile(r"^(module\.)+"), ""),
    (re.compile(r"^language_model\.(encoder|transformer)\."), "decoder."),
    (re.compile(r"^language_model\.embedding\."), "embedding."),
    (re.compile(r"^(language_model\.output_layer|word_embeddings_for_head)\."), "output_layer."),
    (re.compile(r"\.attention\.(query_key_value|dense)\."), r".self_attention.\1."),
    (re.compile(r"\.self_attention\.query_key_value\."), ".self_attention.linear_qkv."),
    (re.compile(r"\.self_attention\.dense\."), ".self_attention.linear_proj."),
    (re.compile(r"\.post_attention_(layer)?norm\."), ".pre_mlp_layernorm."),
    (re.compile(r"\.input_norm\."), ".input_layernorm."),
    (re.compile(r"\.final_norm\."), ".final_layernorm."),
    (re.compile(r"\.mlp\.dense_h_to_4h\."), ".mlp.linear_fc1."),
    (re.compile(r"\.mlp\.dense_4h_to_h\."), ".mlp.linear_fc2."),
    # Transformer Engine's layers include the norm before them.
    (re.compile(r"\.self_attention\.linear_qkv\.layer_norm_(weight|bias)$"), r".input_layernorm.\1"),
    (re.compile(r"\.mlp\.linear_fc1\.layer_norm_(weight|bias)$"), r".pre_mlp_layernorm.\1"),
)
IGNORED = ("*._extra_state", "*.rotary_pos_emb.*")
"""Names of entries that are not converted, such as the state of fp8 recipes."""


def modern(name: str) -> str:
    """megatron-core's name of a tensor, from the name in any version."""
    for pattern, new in _SPELLINGS:
        name = pattern.sub(new, name)
    return name


def legacy(name: str) -> str:
    """The name before megatron-core, from megatron-core's name."""
    for core, older in _OUTSIDE.items():
        if name.startswith(core):
            name = older + name.removeprefix(core)
            break
    for core, older in _IN_LAYER.items():
        name = name.replace(f".{core}.", f".{older}.")
    return name


def in_legacy_order(names: Sequence[str]) -> list[str]:
    """Names of a rank in the parameter order of the older module, whose attention creates its output layer last."""
    places = {name: place + (3.5 if ".linear_proj." in name else 0) for place, name in enumerate(names)}
    return sorted(names, key=places.__getitem__)


def nested(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The form of older files: nested dicts for the model's parts, flat names inside the encoder."""
    tree: dict[str, Any] = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        depth = 2 if name.startswith("language_model.encoder.") else len(parts) - 1
        inner = tree
        for part in parts[:depth]:
            inner = inner.setdefault(part, {})
        inner[".".join(parts[depth:])] = tensor
    return tree


def flattened(tree: Mapping[str, Any]) -> dict[str, Lazy]:
    """The tensors of a file of either form, by flat name; other values are left out."""
    return {name: leaf for name, leaf in flat(tree) if isinstance(leaf, Lazy)}
