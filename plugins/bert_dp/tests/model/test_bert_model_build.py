"""Settings of the model, initial values, ties, and its facts before a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertForPreTraining

from recipe_bert_dp.model.bert import BertPretrainingModel, bert_config, build, loss
from recipe_bert_dp.model.facts import facts
from recipe_bert_dp.settings import BertPretraining
from recipe_bert_dp.testing import plain_rows
from recipe_core import DataFacts, Train
from recipe_core.hooks.train import Precision
from recipe_core.ops import group_attention
from recipe_core.testing.activations import kept_bytes
from recipe_core.train.start.check.estimate import estimate

SMALL = BertPretraining(size="custom", layers=2, hidden=48, heads=3, positions=64, vocabulary=131)
ODD = BertPretraining(size="custom", layers=3, hidden=80, heads=5, intermediate=199, positions=48, vocabulary=333)
BASE = BertPretraining()
LARGE = BertPretraining(size="bert-large-uncased")


def make(config: BertPretraining = SMALL, seed: int = 1) -> BertPretrainingModel:
    torch.manual_seed(seed)
    return build(config)[0]


def empty(config: BertPretraining) -> BertPretrainingModel:
    with torch.device("meta"):
        return build(config)[0]


@pytest.mark.parametrize(
    ("size", "parameters"), [("bert-base-uncased", 110_106_428), ("bert-large-uncased", 336_226_108)]
)
def test_named_sizes_are_those_of_the_published_checkpoints(size: str, parameters: int) -> None:
    """The counts of google-bert's checkpoints with both heads, without tied copies."""
    config = BertPretraining(size=size)
    assert facts(config, 128).parameters == parameters
    with torch.device("meta"):
        peer = BertForPreTraining(bert_config(config))
    assert sum(p.numel() for p in peer.parameters()) == parameters


def test_own_sizes_go_over_named_ones() -> None:
    sizes = replace(LARGE, layers=2, vocabulary=100).sizes
    assert (sizes.layers, sizes.hidden, sizes.intermediate, sizes.vocabulary) == (2, 1024, 4096, 100)
    own = SMALL.sizes
    assert (own.intermediate, own.positions, own.vocabulary) == (192, 64, 131)
    assert BertPretraining(size="custom", layers=1, hidden=8, heads=2).sizes.vocabulary == 30522


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"size": "custom", "hidden": 8}, ["layers: size=custom needs it", "heads: size=custom needs it"]),
        ({"layers": 0, "vocabulary": -1}, ["layers: expected at least 1, got 0", "vocabulary: expected at least 1"]),
        ({"heads": 7}, ["hidden: 768 does not divide into 7 heads"]),
        ({"dropout": 1.0}, ["dropout: expected 0 to below 1, got 1.0"]),
        ({"attention_dropout": -0.1}, ["attention_dropout: expected 0 to below 1, got -0.1"]),
        ({"init_std": 0}, ["init_std: expected more than 0, got 0"]),
    ],
)  # fmt: skip
def test_wrong_settings_are_all_named(settings: dict[str, object], messages: list[str]) -> None:
    with pytest.raises(ValueError, match=r"expected|needs|divide") as caught:
        BertPretraining(**settings)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(messages)
    for line, start in zip(lines, messages, strict=True):
        assert line.startswith(start)


def test_names_and_shapes_are_those_of_hugging_face() -> None:
    with torch.device("meta"):
        peer = BertForPreTraining(bert_config(SMALL))
    shapes, expected = ({name: p.shape for name, p in module.state_dict().items()} for module in (make(), peer))
    assert shapes == expected
    assert list(dict(make().named_parameters())) == list(dict(peer.named_parameters()))
    assert isinstance(make(), BertForPreTraining)


@pytest.mark.parametrize("move", ["build", "to_empty", "bfloat16", "meta"])
def test_the_decoder_is_tied_to_the_embedding(move: str) -> None:
    module = empty(SMALL).to_empty(device="cpu") if move == "to_empty" else make()
    module = {"bfloat16": module.bfloat16, "meta": lambda: module.to("meta")}.get(move, lambda: module)()
    head = module.cls.predictions
    assert head.decoder.weight is module.bert.embeddings.word_embeddings.weight
    assert head.decoder.bias is head.bias
    assert not [name for name, _ in module.named_parameters() if "decoder" in name]


def test_values_follow_from_seed_and_name_alone() -> None:
    first, again, other = (dict(make(seed=seed).named_parameters()) for seed in (1, 1, 2))
    deeper = dict(make(replace(SMALL, layers=3, positions=70)).named_parameters())
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert value.ndim == 1 or not torch.equal(value, other[name])
    for name in ("bert.embeddings.word_embeddings.weight", "bert.encoder.layer.1.output.dense.weight"):
        assert torch.equal(first[name], deeper[name])
    state = torch.get_rng_state()
    build(SMALL)
    assert torch.equal(state, torch.get_rng_state())


def test_values_have_the_deviations_of_hugging_face() -> None:
    config = BertPretraining(size="custom", layers=1, hidden=256, heads=4, vocabulary=600, init_std=0.03)
    peer = dict(BertForPreTraining(bert_config(config)).named_parameters())
    for name, value in make(config).named_parameters():
        expected = peer[name]
        if value.ndim == 1:
            assert torch.equal(value, expected), name
        elif value.numel() > 10_000:
            assert value.std().item() == pytest.approx(0.03, rel=0.02)
            assert value.std().item() == pytest.approx(expected.std().item(), rel=0.03)
            assert abs(value.mean().item()) < 1e-3
    words = make(config).bert.embeddings.word_embeddings.weight
    assert torch.equal(words[0], torch.zeros(256))


def test_it_can_be_built_without_memory_and_filled_later() -> None:
    module = empty(SMALL)
    assert all(p.is_meta for p in module.parameters())
    module.to_empty(device="cpu")
    torch.manual_seed(1)
    module.reset_parameters()
    for (name, value), (_, wanted) in zip(module.named_parameters(), make().named_parameters(), strict=True):
        assert torch.equal(value, wanted), name
    peer = BertForPreTraining(bert_config(SMALL))
    for (name, value), (_, wanted) in zip(module.named_buffers(), peer.named_buffers(), strict=True):
        assert torch.equal(value, wanted), name


@pytest.mark.parametrize("config", [SMALL, ODD, BASE, LARGE])
def test_parameters(config: BertPretraining) -> None:
    assert facts(config, 32).parameters == sum(p.numel() for p in empty(config).parameters())


@pytest.mark.parametrize(("config", "sequence"), [(SMALL, 64), (ODD, 48), (BASE, 128), (BASE, 512), (LARGE, 128)])
def test_floating_point_operations(config: BertPretraining, sequence: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products of forward and backward, counted by PyTorch, with attention as plain products."""
    monkeypatch.setattr(group_attention, "F", Products)
    module = empty(config)
    predictions = round(sequence * 20 / 128 + 0.49)
    batch = plain_rows([sequence], sequence=sequence, predictions=predictions, vocabulary=100)
    batch = {name: values.to("meta") for name, values in batch.items()}
    with FlopCounterMode(display=False) as counter:
        loss(module(batch), batch)["loss"].backward()
    assert facts(config, sequence).flops_per_sample == pytest.approx(counter.get_total_flops(), rel=0.01)


class Products:
    """Attention as two products, as a replacement for torch.nn.functional."""

    @staticmethod
    def scaled_dot_product_attention(q, k, v, **_):  # type: ignore[no-untyped-def]
        return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("config", [replace(BASE, layers=2), ODD])
def test_activations(config: BertPretraining, dropout: float) -> None:
    """Within 5 % of what autograd saves per sample, without parameters, logits, ids and statistics of norms."""
    sequence = 48
    config = replace(config, dropout=dropout, attention_dropout=dropout)
    module, batch = make(config), plain_rows([sequence] * 2, sequence=sequence, predictions=8, vocabulary=100)
    vocabulary = config.sizes.vocabulary
    known = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in known and vocabulary not in tensor.shape:
            kept[storage.data_ptr()] = storage.nbytes() // tensor.itemsize
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(batch)
    assert facts(config, sequence).activation_values == pytest.approx(sum(kept.values()) / 2, rel=0.05)
    del output  # keeps the storages alive until here, so that addresses are unique


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_mixed"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_bytes_of_activations(precision: Precision, recomputed: bool, dropout: float) -> None:
    """The estimate of `recipe check` is within a tenth of what autograd saves for a micro batch of two."""
    sequence = 48
    config = replace(ODD, layers=6, dropout=dropout, attention_dropout=dropout)
    batch = plain_rows([sequence] * 2, sequence=sequence, predictions=8, vocabulary=100)
    kept = kept_bytes(
        make(config).train(),
        lambda module: module(batch),
        precision,
        "bert.encoder.layer.*" if recomputed else "",
        config.sizes.vocabulary,
    )
    train = Train(micro_batch=2, precision=precision, activation_checkpointing=recomputed)
    estimated = estimate(facts(config, sequence), DataFacts(sequence=sequence), train).activations
    assert estimated == pytest.approx(kept, rel=0.1)


def test_recomputation_keeps_the_inputs_of_blocks_and_one_block() -> None:
    two, three = (facts(replace(BASE, layers=layers), 100) for layers in (2, 3))
    block = three.activation_values - two.activation_values
    assert three.recomputed_activation_values - two.recomputed_activation_values == 100 * 768
    ends = two.activation_values - 2 * block
    assert two.recomputed_activation_values == 2 * 100 * 768 + block + ends


def test_limits() -> None:
    counts = facts(ODD, 32)
    assert (counts.max_sequence, counts.vocabulary, counts.logits_values) == (48, 333, 5 * 333)
