"""The model's facts against the model itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recipe_core import DataFacts, Train
from recipe_core.hooks.train import Precision
from recipe_core.testing.activations import kept_bytes
from recipe_core.train.start.check.estimate import estimate
from recipe_llama.model.facts import facts
from recipe_llama.model.llama import build
from recipe_llama.settings import Llama

SMALL = Llama(layers=3, hidden=64, heads=4, kv_heads=2, mlp=176, positions=64, vocabulary=1009)
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tied": True},
    "qwen2": {"attention_bias": "qkv"},
    "qwen3": {"qk_norm": True, "head_dim": 32},
    "all biases": {"attention_bias": "all"},
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16_mixed")
"""Not bf16: there a CPU's norm, unlike a GPU's, keeps copies in fp32."""


def batch(config: Llama, sequence: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(config.vocabulary, (2, sequence + 1))
    return {"tokens": ids[:, :-1], "labels": ids[:, 1:]}


@pytest.mark.parametrize("changed", KINDS.values(), ids=KINDS)
def test_parameters(changed: dict[str, Any]) -> None:
    config = replace(SMALL, **changed)
    with torch.device("meta"):
        module = build(config)[0]
    found = facts(config, 32)
    assert found.parameters == sum(p.numel() for p in module.parameters())
    assert found.block_parameters == sum(p.numel() for p in module.blocks[0].parameters())


@pytest.mark.parametrize("changed", [KINDS["llama"], KINDS["qwen3"]], ids=["llama", "qwen3"])
def test_floating_point_operations(changed: dict[str, Any]) -> None:
    config = replace(SMALL, **changed)
    # In bfloat16 the loss computes its logits once; with the plain attention, no product is counted twice.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        build(config)[0].to(torch.bfloat16)(batch(config, 64)).mean().backward()
    assert 2 * facts(config, 64).flops_per_sample == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("changed", [KINDS["llama"], KINDS["qwen2"], KINDS["qwen3"]], ids=["llama", "qwen2", "qwen3"])
def test_bytes_of_activations(precision: Precision, recomputed: bool, changed: dict[str, Any]) -> None:
    """The estimate of `recipe check` is within a tenth of what autograd keeps of a micro batch of two."""
    config, blocks = replace(SMALL, **changed), "blocks.*" if recomputed else ""
    kept = kept_bytes(build(config)[0], lambda module: module(batch(config, 64)), precision, blocks, config.vocabulary)
    train = Train(micro_batch=2, precision=precision, activation_checkpointing=recomputed)
    said = estimate(facts(config, 64), DataFacts(sequence=64), train).activations
    assert said == pytest.approx(kept, rel=0.1)


def test_the_longest_sequence_follows_the_scaling() -> None:
    assert facts(SMALL, 1).max_sequence == 64
    assert facts(replace(SMALL, rope_type="yarn", rope_factor=4.0), 1).max_sequence == 256
    extended = replace(SMALL, rope_type="llama3", rope_factor=4.0, rope_original_positions=16)
    assert facts(extended, 1).max_sequence == 64
