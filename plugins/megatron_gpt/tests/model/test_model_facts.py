"""A model's facts against the model itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recipe_core import DataFacts, Train
from recipe_core.hooks.train import Precision
from recipe_core.testing.activations import kept_bytes
from recipe_core.train.start.check.estimate import estimate
from recipe_megatron_gpt.model.facts import facts
from recipe_megatron_gpt.model.gpt import build
from recipe_megatron_gpt.settings import Gpt

DEFAULT = Gpt()
ODD = Gpt(layers=3, hidden=80, heads=5, positions=48, vocabulary=331)
GPT_2 = Gpt(layers=12, hidden=768, heads=12, positions=1024, vocabulary=50257)
GPT_6_7B = Gpt(layers=32, hidden=4096, heads=32, positions=2048, vocabulary=50304, dropout=0.0, attention_dropout=0.0)


@pytest.mark.parametrize("config", [DEFAULT, ODD, GPT_2, GPT_6_7B])
def test_parameters(config: Gpt) -> None:
    with torch.device("meta"):
        module, _ = build(config)
    assert facts(config, 32).parameters == sum(p.numel() for p in module.parameters())


def test_parameters_of_gpt_2() -> None:
    assert facts(GPT_2, 512).parameters == 124_439_808


@pytest.mark.parametrize("config", [DEFAULT, ODD, GPT_2])
def test_floating_point_operations(config: Gpt) -> None:
    config, sequence = replace(config, dropout=0.0, attention_dropout=0.0), config.positions
    with torch.device("meta"):
        module, _ = build(config)
        tokens = torch.zeros(1, sequence, dtype=torch.int64)
    # In bfloat16 the loss computes its logits once; with the plain attention, no product is counted twice.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        module.to(torch.bfloat16)({"tokens": tokens, "labels": tokens}).mean().backward()
    assert facts(config, sequence).flops_per_sample == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("config", [DEFAULT, ODD])
def test_activations(config: Gpt, dropout: float) -> None:
    """Within 5 % of what autograd keeps of a sample, without parameters, logits, ids and statistics of norms."""
    config, sequence = replace(config, dropout=dropout, attention_dropout=dropout), config.positions
    module = build(config)[0].to(torch.bfloat16)
    known = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in known and config.vocabulary not in tensor.shape:
            kept[storage.data_ptr()] = storage.nbytes() // tensor.itemsize
        return tensor

    tokens = torch.zeros(2, sequence, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = module({"tokens": tokens, "labels": tokens})
    assert facts(config, sequence).activation_values == pytest.approx(sum(kept.values()) / 2, rel=0.05)
    del losses  # until here the storages are alive, so that no address stands for two of them


def test_recomputation_keeps_the_inputs_of_blocks_and_one_block() -> None:
    two, three = (facts(replace(DEFAULT, layers=layers), 100) for layers in (2, 3))
    block = three.activation_values - two.activation_values
    assert three.recomputed_activation_values - two.recomputed_activation_values == 100 * DEFAULT.hidden
    ends = two.activation_values - 2 * block
    assert two.recomputed_activation_values == 2 * 100 * DEFAULT.hidden + block + ends


def test_limits() -> None:
    found = facts(ODD, 7)
    assert (found.max_sequence, found.vocabulary, found.logits_values) == (48, 331, 7 * 331)


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_mixed"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_bytes_of_activations(precision: Precision, recomputed: bool, dropout: float) -> None:
    """The estimate of `recipe check` is within a tenth of what autograd keeps of a micro batch of two."""
    sequence = 80
    config = replace(ODD, layers=6, positions=sequence, dropout=dropout, attention_dropout=dropout)
    tokens = torch.zeros(2, sequence, dtype=torch.int64)
    kept = kept_bytes(
        build(config)[0].train(),
        lambda module: module({"tokens": tokens, "labels": tokens}),
        precision,
        "blocks.*" if recomputed else "",
        config.vocabulary,
    )
    train = Train(micro_batch=2, precision=precision, activation_checkpointing=recomputed)
    said = estimate(facts(config, sequence), DataFacts(sequence=sequence), train).activations
    assert said == pytest.approx(kept, rel=0.1)


def test_6_7b_recomputed_in_bf16_mixed() -> None:
    """By hand: 32 inputs of blocks, two of norms and the final norm's in fp32; the rest of a block in 16 bits."""
    train = Train(micro_batch=1, precision="bf16_mixed", activation_checkpointing=True)
    stream = 2048 * 4096
    by_hand = 4 * (32 + 2 + 1) * stream + 2 * (14 + 1) * stream
    assert estimate(facts(GPT_6_7B, 2048), DataFacts(sequence=2048), train).activations == by_hand
