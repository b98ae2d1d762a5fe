"""The model against transformers' Llama, Qwen2, Qwen3 and Mistral: logits, gradients, names and shapes."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core.hooks.registry import load
from recipe_core.settings.job import resolve
from recipe_core.testing import command
from recipe_llama.model.facts import facts
from recipe_llama.model.hf import HuggingFace
from recipe_llama.model.llama import LlamaModel, build
from recipe_llama.model.tensor_plan import plan
from recipe_llama.settings import Llama

pytestmark = pytest.mark.peer
SMALL = Llama(
    layers=3, hidden=64, heads=8, kv_heads=2, mlp=96, positions=48, vocabulary=131, init_std=0.1, rope_theta=100.0
)
LONG = {"rope_factor": 4.0, "rope_original_positions": 12}
CASES: dict[str, dict[str, Any]] = {
    "one head of keys": {"kv_heads": 1},
    "four heads of keys, tied": {"kv_heads": 4, "tied": True},
    "as many heads of keys": {"kv_heads": 8},
    "wide heads": {"heads": 6, "head_dim": 24},
    "wide heads, many": {"head_dim": 16},
    "biases": {"attention_bias": "all"},
    "linear": {"rope_type": "linear", "rope_factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "rope_factor": 2.0, "positions": 16},
    "llama3": {"rope_type": "llama3", **LONG, "rope_low_freq_factor": 1.5},
    "yarn": {"rope_type": "yarn", **LONG, "rope_beta_fast": 2.0, "rope_beta_slow": 0.5},
    "yarn, attention factor": {"rope_type": "yarn", **LONG, "rope_attention_factor": 0.7},
    "mistral": {"window": 5},
    "qwen2": {"attention_bias": "qkv", "tied": True},
    "qwen2, window": {"attention_bias": "qkv", "window": 7, "window_from": 1},
    "qwen3": {"qk_norm": True, "tied": True, "head_dim": 16},
    "qwen3, window": {"qk_norm": True, "attention_bias": "all", "window": 3, "window_from": 2},
    "qwen3, yarn": {"qk_norm": True, "rope_type": "yarn", **LONG},
}


def peer_of(config: Llama) -> Any:
    """Return transformers' model of these settings, by the config.json that we write."""
    transformers = pytest.importorskip("transformers")
    texts = json.loads(HuggingFace().adapter(config).files["config.json"])
    theirs = transformers.AutoConfig.for_model(texts.pop("model_type"), **texts)
    return transformers.AutoModelForCausalLM.from_config(theirs, attn_implementation="eager")


def pair(config: Llama) -> tuple[LlamaModel, Any, dict[str, str]]:
    """Return our model, theirs with the same random weights, and their name of each of our parameters."""
    torch.manual_seed(3)
    module, theirs = build(config)[0], peer_of(config).train()
    names = {link.ours[0]: link.theirs[0] for link in HuggingFace().adapter(config).links}
    parameters = dict(theirs.named_parameters())
    assert parameters.keys() == set(names.values())
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.1)
            parameters[names[name]].copy_(parameter)
    return module, theirs, names


@pytest.mark.parametrize("changed", CASES.values(), ids=CASES)
def test_logits_and_gradients(changed: dict[str, Any]) -> None:
    config = replace(SMALL, **changed)
    module, theirs, names = pair(config)
    tokens = torch.randint(config.vocabulary, (2, min(40, config.longest)))
    labels = torch.randint(config.vocabulary, tokens.shape)
    wanted = theirs(tokens).logits
    torch.testing.assert_close(module({"tokens": tokens}), wanted, atol=1e-5, rtol=0)
    torch.nn.functional.cross_entropy(wanted.flatten(0, 1), labels.flatten()).backward()
    module({"tokens": tokens, "labels": labels}).mean().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[names[name]], atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("name", ["four heads of keys, tied", "qwen2", "qwen3, window", "llama3"])
def test_a_folder_of_theirs_comes_back_unchanged(name: str, tmp_path: Path) -> None:
    config = replace(SMALL, **CASES[name])
    theirs = pair(config)[1]
    theirs.save_pretrained(tmp_path / "hf")
    command("convert", str(tmp_path / "hf"), str(tmp_path / "ours"), "--to", "dcp")
    command("convert", str(tmp_path / "ours"), str(tmp_path / "back"), "--to", "hf")
    back = type(theirs).from_pretrained(tmp_path / "back")
    assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in back.state_dict().items())
    assert back.config.rope_parameters == theirs.config.rope_parameters


LLAMA_3_2_1B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 128256,
}  # fmt: skip
QWEN_3_06B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
SMOLLM_135M = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.02, "intermediate_size": 1536,
    "max_position_embeddings": 2048, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 49152,
}  # fmt: skip
PUBLISHED = {
    "Llama 3.2 1B": (LLAMA_3_2_1B, 1_235_814_400),
    "Qwen 3 0.6B": (QWEN_3_06B, 596_049_920),
    "SmolLM 135M": (SMOLLM_135M, 134_515_008),
}
"""The config.json on Hugging Face's hub, and the number of parameters."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_shapes_of_published_models(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    published, parameters = PUBLISHED[name]
    naming = HuggingFace()
    config = Llama(**(naming.settings({"config.json": json.dumps(published)}, {}) or {}))
    assert facts(config, 1).parameters == parameters
    with torch.device("meta"):
        module = build(config)[0]
        given = deepcopy(published)  # transformers changes it
        del given["torch_dtype"]
        theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**given))
    names = {link.ours[0]: link.theirs[0] for link in naming.adapter(config).links}
    found = {names[name]: parameter.shape for name, parameter in module.named_parameters()}
    assert found == {name: parameter.shape for name, parameter in theirs.named_parameters()}
    written = json.loads(naming.adapter(config).files["config.json"])
    same = published.keys() - {"rope_scaling", "sliding_window", "bos_token_id", "eos_token_id"}
    kept = {key: value for key, value in written.items() if key in same}
    assert kept == {key: published[key] for key in kept}
    assert written["rope_scaling"] == published["rope_scaling"]


def test_a_variant_starts_from_the_published_weights() -> None:
    """Its settings are those of config.json, or train.init_from would refuse them."""
    found = resolve(load(), "llama:1b").model.config
    recorded = HuggingFace().settings({"config.json": json.dumps(LLAMA_3_2_1B)}, {}) or {}
    assert found.resolved().items() >= recorded.items()


@pytest.mark.parametrize("name", ["as many heads of keys", "qwen2", "qwen3", "mistral"])
def test_tensor_plan(name: str) -> None:
    """Each matrix that they cut by rows or columns we cut alike, and no other one of a block."""
    config = replace(SMALL, **CASES[name])
    theirs = peer_of(config).config.base_model_tp_plan
    kinds = {"colwise": "column", "rowwise": "row"}
    wanted = {f"model.{pattern}": kinds[kind] for pattern, kind in theirs.items() if kind in kinds}
    names = {link.ours[0]: link.theirs[0] for link in HuggingFace().adapter(config).links}
    found = {
        names[f"{pattern.replace('*', '0')}.weight"].removesuffix(".weight").replace(".0.", ".*."): role
        for pattern, role in plan(config).items()
        if role in kinds.values()
    }
    assert found == wanted
    whole = {pattern for pattern, kind in theirs.items() if kind not in kinds}  # ours have the role of the attention
    assert all(pattern.endswith(("q_norm", "k_norm")) for pattern in whole)
    assert bool(whole) == config.qk_norm
