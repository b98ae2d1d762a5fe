"""A Llama on rows of several documents: each is computed as if it were alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from recipe_core import Batch
from recipe_core.train.building.compiling import compile_blocks
from recipe_core.train.building.recompute import recompute
from recipe_llama.model.facts import facts
from recipe_llama.model.llama import LlamaModel, build
from recipe_llama.settings import Llama

SMALL = Llama(layers=2, hidden=32, heads=4, kv_heads=1, mlp=48, positions=24, vocabulary=97, init_std=0.1)
KINDS: dict[str, dict[str, Any]] = {
    "one head of keys": {},
    "as many heads of keys": {"kv_heads": 4, "tied": True},
    "window": {"kv_heads": 2, "window": 4},
    "window of the last block": {"window": 4, "window_from": 1},
    "qwen3": {"kv_heads": 4, "qk_norm": True, "head_dim": 16, "attention_bias": "all", "window": 3},
    "llama3": {"rope_type": "llama3", "rope_factor": 4.0, "rope_original_positions": 12},
    "yarn": {"rope_type": "yarn", "rope_factor": 4.0, "positions": 8},
    "dynamic": {"rope_type": "dynamic", "rope_factor": 3.0, "positions": 8},
}
IDS = torch.tensor([[1] * 7 + [2] * 9 + [3] * 8, [1] * 3 + [2] * 20 + [0], [1] * 24, [1] * 5 + [0] * 19])
LAST = torch.tensor([[True] * 6 + [False] + [True] * 8 + [False] + [True] * 8, [True] * 2 + [False] + [True] * 20 +
                     [False], [True] * 24, [True] * 4 + [False] * 20])  # fmt: skip


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def model(request: pytest.FixtureRequest) -> LlamaModel:
    return made(**request.param)


@pytest.fixture
def batch() -> Batch:
    tokens, labels = torch.randint(97, (2, *IDS.shape), generator=torch.Generator().manual_seed(2))
    return {"tokens": tokens, "labels": labels, "document_ids": IDS, "loss_mask": LAST}


def made(**changed: Any) -> LlamaModel:
    torch.manual_seed(1)
    return build(replace(SMALL, **changed))[0]


def logits(module: LlamaModel, batch: Batch) -> Tensor:
    with torch.no_grad():
        return module({name: batch[name] for name in ("tokens", "document_ids") if name in batch})


def documents_alone(batch: Batch) -> list[tuple[Batch, Tensor]]:
    """Each document as a batch of one row, and its place in the rows."""
    rows = torch.arange(len(IDS))[:, None]
    found = [(rows == row) & (number == IDS) for row, ids in enumerate(IDS) for number in ids.unique() if number]
    return [({name: batch[name][place][None] for name in ("tokens", "labels", "loss_mask")}, place) for place in found]


def gradients(loss: Tensor, module: LlamaModel) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, list(module.parameters()))


def test_a_changed_document_leaves_its_neighbours(model: LlamaModel, batch: Batch) -> None:
    """To the bit."""
    inside = torch.zeros_like(IDS, dtype=torch.bool)
    inside[0, 7:16] = inside[1, :3] = inside[3, 5:] = True
    changed = {**batch, "tokens": torch.where(inside, (batch["tokens"] + 1) % 97, batch["tokens"])}
    before, after = logits(model, batch), logits(model, changed)
    assert torch.equal(after[~inside], before[~inside])
    assert not torch.equal(after[inside], before[inside])
    unmasked = [logits(model, {"tokens": one["tokens"]}) for one in (batch, changed)]
    assert not torch.equal(unmasked[0][~inside], unmasked[1][~inside])


def test_rows_of_documents_equal_documents_in_rows(model: LlamaModel, batch: Batch) -> None:
    """Logits, losses and gradients are those of the documents, each a batch of its own."""
    found, total, loss = logits(model, batch), torch.zeros(()), build(SMALL)[1]
    for alone, place in documents_alone(batch):
        torch.testing.assert_close(found[place][None], logits(model, {"tokens": alone["tokens"]}), atol=1e-6, rtol=0)
        share = 1 / LAST[place.any(1)].sum() / len(IDS)
        total = total + (model(alone) * alone["loss_mask"]).sum() * share
    whole = loss(model(batch), batch)["loss"]
    assert whole.item() == pytest.approx(total.item(), abs=1e-6)
    for ours, theirs in zip(gradients(whole, model), gradients(total, model), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_a_row_of_one_document_is_a_row_without_documents(model: LlamaModel, batch: Batch) -> None:
    one = {**batch, "document_ids": torch.ones_like(IDS)}
    torch.testing.assert_close(logits(model, one), logits(model, {"tokens": batch["tokens"]}), atol=1e-6, rtol=0)


def test_dynamic_frequencies_are_of_each_document(batch: Batch) -> None:
    """Only documents longer than ``positions`` change theirs."""
    dynamic, plain = made(**KINDS["dynamic"]), made(positions=8)
    long, same = logits(dynamic, batch), logits(plain, batch)
    for alone, place in documents_alone(batch):
        short = alone["tokens"].shape[1] <= 8
        assert torch.allclose(long[place], same[place], atol=1e-6, rtol=0) == short


@pytest.mark.parametrize("change", ["recomputed", "compiled blocks", "compiled"])
def test_recomputation_and_graphs(change: str, batch: Batch) -> None:
    module, loss = made(**KINDS["window of the last block"]), build(SMALL)[1]
    value = loss(module(batch), batch)["loss"]
    eager = [value, *gradients(value, module)]
    if change == "recomputed":
        recompute(module, "blocks.*")
    elif change == "compiled blocks":
        compile_blocks(module, "blocks.*", {"backend": "aot_eager"})
    else:
        module.compile(backend="aot_eager", fullgraph=True)
    value = loss(module(batch), batch)["loss"]
    torch.testing.assert_close([value, *gradients(value, module)], eager, rtol=1e-4, atol=1e-6)
    torch._dynamo.reset()


def test_operations_of_the_attention_are_a_part_of_all() -> None:
    """They alone grow with the square of the sequence."""
    one, two = facts(SMALL, 12), facts(SMALL, 24)
    assert two.attention_flops == 4 * one.attention_flops > 0
    linear = [found.flops_per_sample - found.attention_flops for found in (one, two)]
    assert linear[1] == 2 * linear[0]
