"""The facts are those of the module."""

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
from recipe_decoder.facts import facts
from recipe_decoder.model import DecoderModel, build
from recipe_decoder.settings import Decoder

SMALL = Decoder(layers=3, hidden=64, heads=4, kv_heads=2, mlp=176, positions=64, vocabulary=1009)


def batch(config: Decoder, sequence: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(config.vocabulary, (2, sequence + 1))
    return {"tokens": ids[:, :-1], "labels": ids[:, 1:]}


@pytest.mark.parametrize("tied", [True, False])
def test_parameters(tied: bool) -> None:
    config = replace(SMALL, tied=tied)
    with torch.device("meta"):
        module = DecoderModel(config)
    assert facts(config, 32).parameters == sum(p.numel() for p in module.parameters())


def test_a_published_model_has_its_size() -> None:
    sizes = Decoder(layers=16, hidden=2048, heads=32, kv_heads=8, mlp=8192, vocabulary=128256, tied=True)
    assert facts(sizes, 2048).parameters == 1_235_814_400  # meta-llama/Llama-3.2-1B


def test_operations() -> None:
    # In bfloat16 the loss computes its logits once; with the plain attention, no product is counted twice.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        build(SMALL)[0].to(torch.bfloat16)(batch(SMALL, 64)).mean().backward()
    assert 2 * facts(SMALL, 64).flops_per_sample == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16_mixed"])
def test_bytes_of_activations(precision: Precision, recomputed: bool) -> None:
    """The estimate of `recipe check` is within a tenth of what autograd keeps of a micro batch of two.

    Not with precision=bf16: there a CPU's norm, unlike a GPU's, keeps copies in fp32.
    """
    blocks = "blocks.*" if recomputed else ""
    kept = kept_bytes(build(SMALL)[0], lambda module: module(batch(SMALL, 64)), precision, blocks, SMALL.vocabulary)
    train = Train(micro_batch=2, precision=precision, activation_checkpointing=recomputed)
    said = estimate(facts(SMALL, 64), DataFacts(sequence=64), train).activations
    assert said == pytest.approx(kept, rel=0.1)
