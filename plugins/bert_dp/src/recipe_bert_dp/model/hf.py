"""Names of BERT's tensors in checkpoints of Hugging Face, NVIDIA and Neuron, and settings from config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from recipe_bert_dp.settings import BertPretraining
from recipe_core import Adapter, Naming, hf_settings, read_hf_config, require_hf_values

HEAD_WIDTH = 64
"""Width of a head in every published BERT (Devlin and others, 2019; Turc and others, 2019)."""
_OLD = (
    (re.compile(r"^(module\.)+"), ""),  # DistributedDataParallel's
    (re.compile(r"\bdense_act\b"), "dense"),  # NVIDIA's layers include their activation
    (re.compile(r"\bgamma$"), "weight"),  # the first releases'
    (re.compile(r"\bbeta$"), "bias"),
    (re.compile(r"^(?=(embeddings|encoder|pooler)\.)"), "bert."),  # of a BertModel without heads
)
_FIXED = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "is_decoder": False,
    "tie_word_embeddings": True,
}
"""Settings of config.json that are fixed in this model, with their defaults where config.json has none."""
_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "positions": "max_position_embeddings",
    "vocabulary": "vocab_size",
}
_EMBEDDINGS = "bert.embeddings"


def spelled(name: str) -> str:
    """Current name in BertForPreTraining of a tensor with an old name."""
    for pattern, new in _OLD:
        name = pattern.sub(new, name)
    return name


NAMES = Adapter(
    ties={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=("bert.embeddings.position_ids", "bert.embeddings.token_type_ids"),
    spelling=spelled,
    optional=("cls.*", "bert.pooler.*"),
)
"""The module has Hugging Face's names, so that only tied names and old spellings differ."""


class BertHuggingFace(Naming):
    """The naming ``hf`` of the model ``bert_pretraining``."""

    def adapter(self, config: BertPretraining) -> Adapter:
        """Unchanged names, and a config.json for BertForPreTraining."""
        from dataclasses import replace

        from recipe_bert_dp.model.bert import bert_config

        return replace(NAMES, files={"config.json": bert_config(config).to_json_string()})

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> dict[str, Any] | None:
        """Settings of the model from config.json, or else from the shapes, assuming heads of 64.

        Raises:
            CheckpointError: it is a BERT that this model cannot represent.
        """
        config = read_hf_config(files)
        if config is not None:
            return _of_config(config) if config.get("model_type") == "bert" else None
        return _of_shapes({spelled(name): shape for name, shape in shapes.items()})


def _of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    require_hf_values(config, _FIXED, "BERT", "bert_pretraining")
    return {
        "size": "custom",
        **hf_settings(config, _SIZES, "BERT"),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
    }


def _of_shapes(shapes: Mapping[str, torch.Size]) -> dict[str, Any] | None:
    words, positions = (shapes.get(f"{_EMBEDDINGS}.{kind}_embeddings.weight") for kind in ("word", "position"))
    inside = shapes.get("bert.encoder.layer.0.intermediate.dense.weight")
    if words is None or positions is None or inside is None or len(words) != 2 or not words[1] or words[1] % HEAD_WIDTH:
        return None
    layers = {name.split(".")[3] for name in shapes if name.startswith("bert.encoder.layer.")}
    return {
        "size": "custom",
        "layers": len(layers),
        "hidden": words[1],
        "heads": words[1] // HEAD_WIDTH,
        "intermediate": inside[0],
        "positions": positions[0],
        "vocabulary": words[0],
    }
