"""The model under dropout, recomputation and compilation, on meta devices, and its largest tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recipe_bert_dp import plugin
from recipe_bert_dp.model.bert import BertPretrainingModel, build, loss
from recipe_bert_dp.settings import BertPretraining
from recipe_bert_dp.testing import packed_rows, plain_rows
from recipe_core.layouts.parallel import Batch
from recipe_core.train.building.recompute import recompute

SMALL = BertPretraining(
    size="custom", layers=2, hidden=48, heads=3, intermediate=96, positions=160, vocabulary=131,
    dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
DROPPING = replace(SMALL, dropout=0.1, attention_dropout=0.1)
FORMS = ["plain", "packed"]


def make(config: BertPretraining = SMALL) -> BertPretrainingModel:
    torch.manual_seed(1)
    return build(config)[0]


def batch_of(form: str = "plain") -> Batch:
    plain = plain_rows([150, 40, 97, 13, 60, 88], sequence=150, predictions=10, vocabulary=131)
    return plain if form == "plain" else packed_rows(plain, [[0], [1, 2, 3], [5, 4]], sequence=160)


def gradients(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    module.zero_grad()
    loss(module(batch), batch)["loss"].backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def test_dropout_follows_the_seed_and_rests_in_evaluation() -> None:
    module, batch = make(DROPPING), batch_of()

    def value(seed: int) -> float:
        torch.manual_seed(seed)
        return loss(module(batch), batch)["loss"].item()

    assert value(3) == value(3)
    assert value(3) != value(4)
    module.eval()
    assert value(3) == value(4)
    assert value(3) == loss(make()(batch), batch)["loss"].item()


@pytest.mark.parametrize(("dropout", "attention_dropout"), [(0.1, 0.0), (0.0, 0.1), (0.5, 0.5)])
def test_dropout_is_everywhere_where_transformers_has_it(dropout: float, attention_dropout: float) -> None:
    """The loss has the same mean and deviation over seeds as the peer's, whose modules draw differently."""
    from transformers import BertForPreTraining

    config = replace(SMALL, layers=1, dropout=dropout, attention_dropout=attention_dropout, init_std=0.2)
    module, batch = make(config), plain_rows([24, 15], sequence=24, predictions=6, vocabulary=131)
    peer = BertForPreTraining(module.config)
    peer.load_state_dict(module.state_dict())
    losses: dict[str, list[float]] = {"model": [], "peer": []}
    for seed in range(400):
        torch.manual_seed(seed)
        with torch.no_grad():
            losses["model"].append(module(batch).masked_losses[1].mean().item())
            output = peer.train()(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
            words = output.prediction_logits[1, batch["masked_lm_positions"][1]]
            losses["peer"].append(nn.functional.cross_entropy(words, batch["masked_lm_ids"][1]).item())
    actual, expected = (torch.tensor(values, dtype=torch.float64) for values in losses.values())
    error = ((actual.var() + expected.var()) / 400).sqrt()
    assert abs(actual.mean() - expected.mean()) < 4 * error
    assert (actual.std() / expected.std()).log().abs() < 4 / 400**0.5


@pytest.mark.parametrize("form", FORMS)
def test_recomputed_blocks_give_equal_gradients(form: str) -> None:
    module, batch = make(DROPPING), batch_of(form)
    (spec,) = plugin.register_models()
    torch.manual_seed(7)
    wanted = gradients(module, batch)
    recompute(module, spec.blocks)
    torch.manual_seed(7)
    for name, value in gradients(module, batch).items():
        assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize(("form", "mixed"), [("plain", False), ("packed", False), ("plain", True)])
def test_it_compiles(form: str, mixed: bool) -> None:
    module, batch = make(replace(SMALL, layers=1)), plain_rows([9, 20], sequence=20, predictions=4, vocabulary=131)
    batch = batch if form == "plain" else packed_rows(batch, [[0, 1]], sequence=30)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        wanted, got = gradients(module, batch), gradients(compiled, batch)
    for name, value in wanted.items():
        actual = got[f"_orig_mod.{name}"]
        assert (actual - value).norm() <= (0.03 if mixed else 1e-5) * value.norm() + 1e-6, name


@pytest.mark.parametrize("form", FORMS)
def test_no_values_are_read(form: str) -> None:
    """Forward and backward run on a device without values (as XLA before a graph runs)."""
    with torch.device("meta"):
        module, _ = build(DROPPING)
    batch = {name: values.to("meta") for name, values in batch_of(form).items()}
    metrics = loss(module(batch), batch)
    metrics["loss"].backward()
    assert all(value.shape == () for value in metrics.values())
    assert all(p.grad.shape == p.shape for p in module.parameters())


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest result with a dimension of ``width``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.elements = width, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and self.width in tensor.shape:
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("form", FORMS)
def test_only_masked_positions_have_logits(form: str) -> None:
    config = replace(SMALL, vocabulary=20_011)  # large enough that the logits outnumber the embedding
    module, batch = make(config), batch_of(form)
    with Largest(config.vocabulary) as largest:
        loss(module(batch), batch)["loss"].backward()
    masked = batch["masked_lm_ids"].numel() * config.vocabulary
    assert largest.elements == masked
    assert masked < batch["input_ids"].numel() * config.vocabulary / 4


def test_it_learns_a_batch_by_heart() -> None:
    module, batch = make(DROPPING), batch_of()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    values = []
    for _ in range(60):
        metrics = loss(module(batch), batch)
        optimizer.zero_grad()
        metrics["loss"].backward()
        optimizer.step()
        values.append(metrics["mlm_loss"].item())
    assert values[0] == pytest.approx(4.88, abs=0.1)  # ln 131
    assert values[-1] < 0.5
    assert metrics["mlm_accuracy"] > 0.9
