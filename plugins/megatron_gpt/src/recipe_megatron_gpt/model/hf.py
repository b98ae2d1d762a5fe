"""A GPT as Hugging Face's GPT2LMHeadModel: names, shapes and config.json.

GPT-2's matrices are stored transposed (``Conv1D``: ``[in, out]``), and the columns of ``c_attn`` are all queries, then
all keys, then all values; here they have that order within each head.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from recipe_core import Adapter, CheckpointError, Link, Naming, hf_settings, read_hf_config, require_hf_values
from recipe_megatron_gpt.settings import Gpt

HEAD_WIDTH = 64
"""In every published GPT-2 (Radford and others, 2019)."""
NORM_EPS = 1e-5
_FIXED = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": NORM_EPS,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
"""Settings of config.json that this model fixes; the values are also the defaults of config.json."""
_SIZES = {
    "layers": "n_layer",
    "hidden": "n_embd",
    "heads": "n_head",
    "positions": "n_positions",
    "vocabulary": "vocab_size",
}
_BARE = re.compile(r"^(?=(wte|wpe|h|ln_f)\.)")
"""Names of a GPT2Model, which has no head."""
_SAME = {
    "attention_norm.weight": "ln_1.weight",
    "attention_norm.bias": "ln_1.bias",
    "attention.output.bias": "attn.c_proj.bias",
    "mlp_norm.weight": "ln_2.weight",
    "mlp_norm.bias": "ln_2.bias",
    "mlp.up.bias": "mlp.c_fc.bias",
    "mlp.down.bias": "mlp.c_proj.bias",
}
"""Tensors of a block with the same shape in both."""
_TRANSPOSED = {
    "attention.output.weight": "attn.c_proj.weight",
    "mlp.up.weight": "mlp.c_fc.weight",
    "mlp.down.weight": "mlp.c_proj.weight",
}


class GptHuggingFace(Naming):
    """The naming ``hf`` of the model ``gpt``."""

    def adapter(self, config: Gpt) -> Adapter:
        """GPT-2's names and shapes, and a config.json for GPT2LMHeadModel."""
        return Adapter(
            links=tuple(_links(config)),
            ties={"lm_head.weight": "transformer.wte.weight"},
            ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
            spelling=lambda name: _BARE.sub("transformer.", name),
            files={"config.json": json.dumps(_config(config), indent=2, sort_keys=True) + "\n"},
        )

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> dict[str, Any] | None:
        """Settings from config.json, or else from the shapes, with heads of 64.

        Raises:
            CheckpointError: the GPT-2 has a feature that this model lacks.
        """
        config = read_hf_config(files)
        if config is None:
            return _of_shapes({_BARE.sub("transformer.", name): shape for name, shape in shapes.items()})
        return _of_config(config) if config.get("model_type") == "gpt2" else None


def _links(config: Gpt) -> Iterator[Link]:
    ends = {
        "tokens.weight": "wte.weight",
        "positions.weight": "wpe.weight",
        "norm.weight": "ln_f.weight",
        "norm.bias": "ln_f.bias",
    }
    yield from (Link(ours=(ours,), theirs=(f"transformer.{theirs}",)) for ours, theirs in ends.items())
    to, back = partial(_by_kind, heads=config.heads), partial(_by_head, heads=config.heads)
    for number in range(config.layers):
        our, their = f"blocks.{number}.", f"transformer.h.{number}."
        yield from (Link(ours=(our + ours,), theirs=(their + theirs,)) for ours, theirs in _SAME.items())
        for ours, theirs in _TRANSPOSED.items():
            yield Link(ours=(our + ours,), theirs=(their + theirs,), to=_transposed, back=_transposed)
        for kind in ("weight", "bias"):
            ours, theirs = f"{our}attention.qkv.{kind}", f"{their}attn.c_attn.{kind}"
            yield Link(ours=(ours,), theirs=(theirs,), to=to, back=back)


def _transposed(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.t() for tensor in tensors]


def _by_kind(tensors: Sequence[Tensor], heads: int) -> list[Tensor]:
    """From ``[heads x 3 x width, ...]`` to queries of all heads, then keys, then values; matrices are transposed."""
    return [tensor.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2).t() for tensor in tensors]


def _by_head(tensors: Sequence[Tensor], heads: int) -> list[Tensor]:
    # inverse of _by_kind
    return [tensor.t().unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2) for tensor in tensors]


def _config(config: Gpt) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "n_inner": None,
        **_FIXED,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "initializer_range": config.init_std,
        # The defaults belong to GPT-2's own vocabulary; generation takes them from the tokenizer.
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    require_hf_values(config, _FIXED, "GPT-2", "gpt")
    sizes = hf_settings(config, _SIZES, "GPT-2")
    if config.get("n_inner") not in (None, 4 * sizes["hidden"]):
        raise CheckpointError(
            f"config.json: a GPT-2 that gpt cannot be: n_inner is {config['n_inner']} and not 4 x {sizes['hidden']}"
        )
    dropouts = {config.get("embd_pdrop", 0.1), config.get("resid_pdrop", 0.1)}
    return {**sizes, "dropout": max(dropouts), "attention_dropout": config.get("attn_pdrop", 0.1)}


def _of_shapes(shapes: Mapping[str, torch.Size]) -> dict[str, Any] | None:
    words, positions = (shapes.get(f"transformer.{kind}.weight") for kind in ("wte", "wpe"))
    if words is None or positions is None or len(words) != 2 or not words[1] or words[1] % HEAD_WIDTH:
        return None
    layers = {name.split(".")[2] for name in shapes if name.startswith("transformer.h.")}
    return {
        "layers": len(layers),
        "hidden": words[1],
        "heads": words[1] // HEAD_WIDTH,
        "positions": positions[0],
        "vocabulary": words[0],
    }
