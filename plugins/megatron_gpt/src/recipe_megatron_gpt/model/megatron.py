"""A GPT under megatron-core's names, with the same shapes and order of queries, keys and values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from recipe_core import Adapter, CheckpointError, Link, Naming
from recipe_megatron_gpt.checkpoint.names import IGNORED
from recipe_megatron_gpt.settings import Gpt

ARGS = "args.json"
_BEFORE = {
    "tokens.weight": "embedding.word_embeddings.weight",
    "positions.weight": "embedding.position_embeddings.weight",
}
_BLOCK = {
    "attention_norm": "input_layernorm",
    # in the order of megatron-core's module, by which its optimizers number the parameters
    "attention.output": "self_attention.linear_proj",
    "attention.qkv": "self_attention.linear_qkv",
    "mlp_norm": "pre_mlp_layernorm",
    "mlp.up": "mlp.linear_fc1",
    "mlp.down": "mlp.linear_fc2",
}
_SIZES = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
    "vocabulary": "padded_vocab_size",
}
NORM_EPS = 1e-5
_FIXED = {
    "position_embedding_type": "learned_absolute",
    "normalization": "LayerNorm",
    "swiglu": False,
    "add_bias_linear": True,
    "untie_embeddings_and_output_weights": False,
    "group_query_attention": False,
    "squared_relu": False,
    "apply_layernorm_1p": False,
    "apply_residual_connection_post_layernorm": False,
    "num_experts": None,
    "multi_latent_attention": False,
    "qk_layernorm": False,
    "quick_geglu": False,
    "norm_epsilon": NORM_EPS,
}
"""Settings of Megatron that this model fixes; the values are also assumed where a file has none."""
_OLDER_AND_RARE = {
    "layernorm_epsilon": NORM_EPS,
    "use_rotary_position_embeddings": False,
    "add_position_embedding": True,
    "window_size": None,
    "attention_output_gate": False,
    "softmax_type": "vanilla",
    "mtp_num_layers": None,
}
"""Further ones of some versions; they are not written."""


class Megatron(Naming):
    """The naming ``megatron`` of the model ``gpt``."""

    def adapter(self, config: Gpt) -> Adapter:
        """megatron-core's names, and its ``args``."""
        args = {
            **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
            **_FIXED,
            "ffn_hidden_size": 4 * config.hidden,
            "kv_channels": config.hidden // config.heads,
            "seq_length": config.positions,
            "hidden_dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "init_method_std": config.init_std,
        }
        return Adapter(
            links=tuple(_links(config)),
            ties={"output_layer.weight": "embedding.word_embeddings.weight"},
            ignored=IGNORED,
            files={ARGS: json.dumps(args)},
        )

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> dict[str, Any] | None:
        """Settings from ``args``.

        Raises:
            CheckpointError: the model has a feature that this one lacks.
        """
        args = json.loads(files[ARGS]) if ARGS in files else {}
        if not all(args.get(theirs) for theirs in _SIZES.values()):
            return None
        if unsupported := _unsupported(args):
            raise CheckpointError(f"its args say that it is a model that gpt cannot be: {'; '.join(unsupported)}")
        sizes = {ours: args[theirs] for ours, theirs in _SIZES.items()}
        return {
            **sizes,
            "vocabulary": args.get("orig_vocab_size") or sizes["vocabulary"],
            "dropout": args.get("hidden_dropout", 0.1),
            "attention_dropout": args.get("attention_dropout", 0.1),
        }

    def recorded(self, files: Mapping[str, str], config: Gpt) -> dict[str, Any] | None:
        """The result of :meth:`settings` for a comparison with ``config``: any vocabulary matches that is padded to the
        rows in the file.

        Raises:
            CheckpointError: the model has a feature that this one lacks.
        """
        stored = self.settings(files, {})
        if stored is None:
            return None
        args = json.loads(files[ARGS])
        padded = args[_SIZES["vocabulary"]]
        unit = (args.get("make_vocab_size_divisible_by") or 128) * (args.get("tensor_model_parallel_size") or 1)
        least = args.get("orig_vocab_size") or padded - unit + 1
        return {**stored, "vocabulary": config.vocabulary} if least <= config.vocabulary <= padded else stored


def _unsupported(args: Mapping[str, Any]) -> list[str]:
    # Newer versions have None for a setting without a value.
    fixed = {**_FIXED, **_OLDER_AND_RARE}
    differing = [f"{name} is {args[name]!r}" for name, value in fixed.items() if args.get(name) not in (None, value)]
    products = {"ffn_hidden_size": (4, "hidden_size"), "hidden_size": (args.get("kv_channels"), "num_attention_heads")}
    for name, (factor, other) in products.items():
        if args.get(name) is not None and factor is not None and args[name] != factor * args[other]:
            differing.append(f"{name} is {args[name]} and not {factor} x {args[other]}")
    if args.get("bias_gelu_fusion") is False and not args.get("openai_gelu"):  # both compute the tanh form
        differing.append("bias_gelu_fusion is False, which computes GELU by erf and not by tanh")
    return differing


def _links(config: Gpt) -> Iterator[Link]:
    # in the order of megatron-core's module
    yield from (Link(ours=(ours,), theirs=(theirs,)) for ours, theirs in _BEFORE.items())
    for number in range(config.layers):
        for ours, theirs in _BLOCK.items():
            for kind in ("weight", "bias"):
                pair = f"blocks.{number}.{ours}.{kind}", f"decoder.layers.{number}.{theirs}.{kind}"
                yield Link(ours=(pair[0],), theirs=(pair[1],))
    for kind in ("weight", "bias"):
        yield Link(ours=(f"norm.{kind}",), theirs=(f"decoder.final_layernorm.{kind}",))
