"""The model's facts for ``recipe check``, against the model itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForSequenceClassification

from recipe_core import DataFacts, Train
from recipe_core.hooks.train import Precision
from recipe_core.testing.activations import kept_bytes
from recipe_core.train.start.check.estimate import estimate
from recipe_hf_finetune.model.facts import facts
from recipe_hf_finetune.settings import SequenceClassifier

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def bert(dropout: float = 0.0) -> BertConfig:
    return BertConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=160,
        max_position_embeddings=64, hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    BertForSequenceClassification(bert()).save_pretrained(tmp_path)
    return tmp_path


def counted(config: BertConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in BertForSequenceClassification(config).parameters())


def test_parameters(folder: Path) -> None:
    counts = facts(SequenceClassifier(source=str(folder)), 16)
    assert counts is not None
    assert counts.parameters == counted(bert())


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bert-base-cased", {"vocab_size": 28996}),
        ("google-bert/bert-large-uncased", LARGE),
    ],
)
def test_published_models_are_known_without_a_hub(name: str, sizes: dict[str, int]) -> None:
    counts = facts(SequenceClassifier(source=name), 128)
    assert counts is not None
    assert counts.parameters == counted(BertConfig(**sizes))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_values_that_are_kept(folder: Path, dropout: float) -> None:
    """Every tensor that autograd keeps, each storage once, weights and indices left out; within a tenth."""
    config = SequenceClassifier(source=str(folder), dropout=dropout)
    model = BertForSequenceClassification(bert(dropout)).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in weights and (tensor.is_floating_point() or tensor.dtype == torch.bool):
            kept[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=torch.randint(500, (4, 48)), labels=torch.tensor([0, 1, 0, 1]))
    counts = facts(config, 48)
    assert counts is not None
    assert sum(tensor.numel() for tensor in kept.values()) == pytest.approx(4 * counts.activation_values, rel=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_mixed"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_bytes_of_activations(folder: Path, precision: Precision, dropout: float) -> None:
    """The estimate of `recipe check` is within a tenth of what autograd keeps of a micro batch of four."""
    counts = facts(SequenceClassifier(source=str(folder), dropout=dropout), 48)
    assert counts is not None
    tokens, labels = torch.randint(500, (4, 48)), torch.tensor([0, 1, 0, 1])
    model = BertForSequenceClassification(bert(dropout)).train()
    kept = kept_bytes(model, lambda module: module(input_ids=tokens, labels=labels), precision)
    estimated = estimate(counts, DataFacts(sequence=48), Train(micro_batch=4, precision=precision)).activations
    assert estimated == pytest.approx(kept, rel=0.1)


def test_operations(folder: Path) -> None:
    """Against PyTorch's own counter, forward and backward; it passes over fused attention on CPUs."""
    model = BertForSequenceClassification._from_config(bert(), attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.randint(500, (2, 32)), labels=torch.tensor([0, 1])).loss.backward()
    counts = facts(SequenceClassifier(source=str(folder)), 32)
    assert counts is not None
    assert counter.get_total_flops() == pytest.approx(2 * counts.flops_per_sample, rel=0.05)


@pytest.mark.parametrize(
    "content", [None, "{", "[]", json.dumps({"model_type": "t5"}), json.dumps({"model_type": "bert"})]
)
def test_unknown_models_have_no_facts(tmp_path: Path, content: Any) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert facts(SequenceClassifier(source=str(tmp_path)), 16) is None
    assert facts(SequenceClassifier(source="somebody/something"), 16) is None
    assert facts(SequenceClassifier(source=None), 16) is None
