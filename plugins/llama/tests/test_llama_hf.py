"""Settings from and to config.json, and what is refused; transformers' own results: test_llama_peer.py."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from recipe_core import CheckpointError
from recipe_llama.model.hf import HuggingFace
from recipe_llama.settings import Llama

SMALL = Llama(layers=3, hidden=64, heads=8, kv_heads=2, head_dim=8, mlp=96, positions=48, vocabulary=131)
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "window": 5},
    "qwen2": {"model_type": "qwen2", "attention_bias": "qkv", "window": 7, "window_from": 1},
    "qwen3": {"model_type": "qwen3", "qk_norm": True, "head_dim": 16, "tied": True},
    "yarn": {"model_type": "qwen3", "qk_norm": True, "rope_type": "yarn", "rope_factor": 4.0},
    "llama3": {"model_type": "llama", "rope_type": "llama3", "rope_factor": 8.0, "rope_original_positions": 6},
}


def config_of(config: Llama, **changed: Any) -> dict[str, str]:
    """Return the files of a checkpoint with these settings, changed."""
    texts = json.loads(HuggingFace().adapter(config).files["config.json"])
    return {"config.json": json.dumps({**texts, **changed})}


def settings_of(files: dict[str, str]) -> Llama:
    return Llama(**(HuggingFace().settings(files, {}) or {}))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_settings_come_back(kind: dict[str, Any]) -> None:
    changed = {**kind}
    model_type = changed.pop("model_type")
    config = replace(SMALL, **changed)
    files = config_of(config)
    assert json.loads(files["config.json"])["model_type"] == model_type
    found = settings_of(files)
    assert found.resolved() == config.resolved()
    older = json.loads(files["config.json"])
    del older["rope_parameters"]  # before release 5 of transformers
    assert settings_of({"config.json": json.dumps(older)}) == found


def test_defaults_of_families() -> None:
    texts = json.loads(config_of(SMALL)["config.json"])
    for name in ("num_key_value_heads", "head_dim", "tie_word_embeddings", "attention_bias"):
        del texts[name]
    found = settings_of({"config.json": json.dumps(texts)})
    assert (found.kv_heads, found.head_width, found.tied, found.attention_bias) == (8, 8, False, "none")
    qwen = json.loads(config_of(replace(SMALL, qk_norm=True))["config.json"])
    del qwen["head_dim"]
    assert settings_of({"config.json": json.dumps(qwen)}).head_dim == 128
    assert settings_of(config_of(SMALL, layer_types=None, num_key_value_heads=None)).kv_heads == 8
    mistral = json.loads(config_of(replace(SMALL, window=5))["config.json"])
    del mistral["sliding_window"]
    assert settings_of({"config.json": json.dumps(mistral)}).window == 4096


def test_another_model_is_not_recognised() -> None:
    assert HuggingFace().settings({"config.json": json.dumps({"model_type": "gpt2"})}, {}) is None
    assert HuggingFace().settings({}, {}) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mlp_bias": True}, "a Llama that llama cannot be: mlp_bias is True and not False"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu' and not 'silu'"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"sliding_window": 8}, "sliding_window is 8 and not None"),
        ({"model_type": "mistral", "attention_bias": True}, "a Mistral that llama cannot be: attention_bias is True"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 3}, "layer_types is"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters: rope_type is 'longrope'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: lacks factor, which 'linear' needs"),
        ({"rope_parameters": {"rope_type": "default", "alpha": 2.0}}, "rope_parameters: alpha: the model llama lacks"),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 0.7}},
            "mscale is 0.7 and not None",
        ),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ],
)
def test_what_the_model_lacks_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        HuggingFace().settings(config_of(SMALL, **changed), {})


def test_settings_of_no_family_are_refused() -> None:
    for changed in ({"qk_norm": True, "attention_bias": "qkv"}, {"window": 5, "window_from": 1}):
        with pytest.raises(CheckpointError, match="no family of Hugging Face's has the model's settings qk_norm="):
            HuggingFace().adapter(replace(SMALL, **changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"heads": 5}, "hidden: 64 does not divide into 5 heads; set head_dim"),
        ({"kv_heads": 3}, "heads: 8 does not divide into 3 groups"),
        ({"head_dim": 7}, "head_dim: expected an even width"),
        ({"window": 0}, "window: expected at least 1, got 0"),
        ({"rope_factor": 2.0}, "rope_factor: 2 has no effect with rope_type=default"),
        ({"rope_factor": 0.5}, "rope_factor: expected at least 1"),
        ({"rope_type": "dynamic", "head_dim": 2}, "rope_type: dynamic needs heads wider than 2"),
        ({"rope_high_freq_factor": 1.0}, "rope_high_freq_factor: expected more than 1"),
        ({"rope_beta_fast": 1.0}, "rope_beta_fast: expected more than rope_beta_slow"),
        ({"rope_theta": 1.0}, "rope_theta: expected more than 1, got 1.0"),
    ],
)
def test_settings_that_do_not_fit(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Llama(**{**vars(SMALL), "head_dim": None, **changed})
