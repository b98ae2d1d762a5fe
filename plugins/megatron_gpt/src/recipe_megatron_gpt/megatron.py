"""A GPT under megatron-core's names. Shapes and the order of queries, keys and values are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from recipe_core.errors import CheckpointError
from recipe_core.megatron_names import IGNORED
from recipe_core.naming import Adapter, Link
from recipe_megatron_gpt.config import Gpt

ARGS = "args.json"
_BEFORE = {
    "tokens.weight": "embedding.word_embeddings.weight",
    "positions.weight": "embedding.position_embeddings.weight",
}
_BLOCK = {
    "attention_norm": "input_layernorm",
    # The order of megatron-core's module, by which its optimizers number the parameters.
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
}
"""Settings of Megatron that this model does not let choose, with what they are where a file is silent."""


class Megatron:
    """The naming ``megatron`` of the model ``gpt``."""

    def adapter(self, config: Gpt) -> Adapter:
        """megatron-core's names, and what its ``args`` say."""
        args = {
            **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
            **_FIXED,
            "ffn_hidden_size": 4 * config.hidden,
            "kv_channels": config.hidden // config.heads,
            "seq_length": config.positions,
            "hidden_dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "init_method_std": config.init_std,
            "norm_epsilon": 1e-5,
        }
        return Adapter(
            links=tuple(_links(config)),
            ties={"output_layer.weight": "embedding.word_embeddings.weight"},
            ignored=IGNORED,
            files={ARGS: json.dumps(args)},
        )

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> dict[str, Any] | None:
        """From what ``args`` say.

        Raises:
            CheckpointError: it is a model with something that this one does not have.
        """
        args = json.loads(files[ARGS]) if ARGS in files else {}
        if not all(args.get(theirs) for theirs in _SIZES.values()):
            return None
        # Newer versions say None where a setting is not chosen.
        other = [f"{name} is {args[name]!r}" for name, value in _FIXED.items() if args.get(name) not in (None, value)]
        if args.get("ffn_hidden_size") not in (None, 4 * args["hidden_size"]):
            other.append(f"ffn_hidden_size is {args['ffn_hidden_size']} and not 4 x {args['hidden_size']}")
        if other:
            raise CheckpointError(f"its args say that it is a model that gpt cannot be: {'; '.join(other)}")
        sizes = {ours: args[theirs] for ours, theirs in _SIZES.items()}
        return {
            **sizes,
            "vocabulary": args.get("orig_vocab_size") or sizes["vocabulary"],
            "dropout": args.get("hidden_dropout", 0.1),
            "attention_dropout": args.get("attention_dropout", 0.1),
        }


def _links(config: Gpt) -> Iterator[Link]:
    """In the order of megatron-core's module."""
    yield from (Link(ours=(ours,), theirs=(theirs,)) for ours, theirs in _BEFORE.items())
    for number in range(config.layers):
        for ours, theirs in _BLOCK.items():
            for kind in ("weight", "bias"):
                pair = f"blocks.{number}.{ours}.{kind}", f"decoder.layers.{number}.{theirs}.{kind}"
                yield Link(ours=(pair[0],), theirs=(pair[1],))
    for kind in ("weight", "bias"):
        yield Link(ours=(f"norm.{kind}",), theirs=(f"decoder.final_layernorm.{kind}",))
