"""A GPT on rows of several documents: each is computed as if it were alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recipe_core import Batch, ConfigError, Loss
from recipe_core.hooks.registry import load
from recipe_core.testing.conformance.model import documents_apart
from recipe_core.testing.conformance.outcome import FailedCheck
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.train.building.compiling import compile_blocks
from recipe_core.train.building.recompute import recompute
from recipe_core.train.start.check import checked_job
from recipe_megatron_gpt.model import gpt
from recipe_megatron_gpt.model.gpt import GptModel, build
from recipe_megatron_gpt.settings import Gpt

IDS = torch.tensor([[1] * 7 + [2] * 9 + [3] * 8, [1] * 3 + [2] * 20 + [0], [1] * 24, [1] * 5 + [0] * 19])
LAST = torch.tensor([[True] * 6 + [False] + [True] * 8 + [False] + [True] * 8, [True] * 2 + [False] + [True] * 20 +
                     [False], [True] * 24, [True] * 4 + [False] * 20])  # fmt: skip


@pytest.fixture
def model() -> tuple[GptModel, Loss]:
    torch.manual_seed(1)
    return build(Gpt(layers=2, hidden=32, heads=2, positions=24, vocabulary=96, dropout=0, attention_dropout=0))


@pytest.fixture
def batch() -> Batch:
    tokens, labels = torch.randint(96, (2, *IDS.shape), generator=torch.Generator().manual_seed(2))
    return {"tokens": tokens, "labels": labels, "document_ids": IDS, "loss_mask": LAST}


def logits(module: GptModel, batch: Batch) -> Tensor:
    with torch.no_grad():
        return module({name: batch[name] for name in ("tokens", "document_ids")})


def test_a_changed_document_leaves_its_neighbours(model: tuple[GptModel, Loss], batch: Batch) -> None:
    """To the bit."""
    before = logits(model[0], batch)
    inside = torch.zeros_like(IDS, dtype=torch.bool)
    inside[0, 7:16] = inside[1, :3] = inside[3, 5:] = True
    changed = {**batch, "tokens": torch.where(inside, (batch["tokens"] + 1) % 96, batch["tokens"])}
    after = logits(model[0], changed)
    assert torch.equal(after[~inside], before[~inside])
    assert not torch.equal(after[inside], before[inside])
    del changed["document_ids"]
    unmasked = [model[0]({"tokens": one["tokens"]}) for one in (batch, changed)]
    assert not torch.equal(unmasked[0][~inside], unmasked[1][~inside])


def test_rows_of_documents_equal_documents_in_rows(model: tuple[GptModel, Loss], batch: Batch) -> None:
    """Losses and gradients of a batch are those of its documents, each a batch of its own."""
    module, loss = model
    module.zero_grad()
    found = loss(module(batch), batch)
    found["loss"].backward()
    ours = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    module.zero_grad()
    total = torch.zeros(())
    for row, count in enumerate(LAST.sum(1).tolist()):
        for number in range(1, int(IDS[row].max()) + 1):
            place = IDS[row] == number
            losses = module({name: batch[name][row, place][None] for name in ("tokens", "labels", "loss_mask")})
            total = total + (losses[0] * LAST[row, place]).sum() / count / len(IDS)
    total.backward()
    assert found["loss"].item() == pytest.approx(total.item(), abs=1e-6)
    for one, parameter in zip(ours, module.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, atol=1e-6, rtol=1e-5)


def test_the_loss_does_not_depend_on_the_micro_batch(model: tuple[GptModel, Loss], batch: Batch) -> None:
    module, loss = model
    whole = loss(module(batch), batch)
    rows = [{name: tensor[row : row + 1] for name, tensor in batch.items()} for row in range(len(IDS))]
    each = [loss(module(row), row)["loss"] for row in rows]
    assert whole["loss"].item() == pytest.approx(torch.stack(each).mean().item(), abs=1e-6)
    assert whole["real_tokens"] == (IDS != 0).sum()
    assert whole["padding"].item() == pytest.approx(20 / 96)


def test_a_row_of_padding_has_no_loss(model: tuple[GptModel, Loss], batch: Batch) -> None:
    module, loss = model
    padding = {**batch, "document_ids": torch.zeros_like(IDS), "loss_mask": torch.zeros_like(LAST)}
    values = loss(module(padding), padding)
    values["loss"].backward()
    assert values["loss"] == 0
    assert values["padding"] == 1
    assert all(not p.grad.any() for p in module.parameters() if p.grad is not None)


@pytest.mark.parametrize("change", ["recomputed", "compiled blocks", "compiled"])
def test_recomputation_and_graphs(change: str, model: tuple[GptModel, Loss], batch: Batch) -> None:
    module, loss = model
    found: list[Any] = []
    for changed in (False, True):
        if changed and change == "recomputed":
            recompute(module, "blocks.*")
        elif changed and change == "compiled blocks":
            compile_blocks(module, "blocks.*", {"backend": "aot_eager"})
        elif changed:
            module.compile(backend="aot_eager", fullgraph=True)
        module.zero_grad()
        value = loss(module(batch), batch)["loss"]
        value.backward()
        found.append([value.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
    torch._dynamo.reset()
    for eager, one in zip(*found, strict=True):
        if change == "recomputed":
            assert torch.equal(one, eager)
        torch.testing.assert_close(one, eager, rtol=1e-4, atol=1e-6)  # attention is another kernel in a graph


def test_conformance_finds_positions_that_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugin = Plugin("recipe_megatron_gpt.plugin", "recipe_megatron_gpt.plugin", load(), tmp_path)
    spec = load().get("model", "gpt")
    assert documents_apart(plugin, spec) == "32 tokens after another document"
    monkeypatch.setattr(gpt, "document_positions", lambda ids: torch.arange(ids.shape[1]).expand_as(ids))
    with pytest.raises(FailedCheck, match="document_mask: the outputs of a document depend on the one before it"):
        documents_apart(plugin, spec)


def test_a_model_that_does_not_declare_it_is_refused() -> None:
    registry = load()
    object.__setattr__(registry.get("model", "gpt"), "document_mask", False)
    checked_job(registry, "megatron_gpt:tiny")
    with pytest.raises(
        ConfigError, match=r"^data\.document_mask: model gpt does not keep the documents of a row apart"
    ):
        checked_job(registry, "megatron_gpt:tiny", ["data.document_mask=true"])
