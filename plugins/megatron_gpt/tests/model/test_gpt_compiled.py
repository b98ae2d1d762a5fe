"""GPT's blocks under ``train.compile`` on a device that is no CPU: one graph for all layers, without a break."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recipe_core.hooks.registry import load
from recipe_core.testing.compiling import GraphCounts, traced
from recipe_core.train.building.compiling import compile_blocks
from recipe_core.train.building.recompute import recompute
from recipe_core.train.start.check import checked_job
from recipe_megatron_gpt.model.gpt import build
from recipe_megatron_gpt.settings import Gpt

WORDS = (
    "train.compile=true", "train.precision=fp32", "train.steps=3", "train.eval_every=2", "train.eval_samples=4",
    "model.layers=4",
)  # fmt: skip


@pytest.mark.parametrize("words", [
    ("model.dropout=0.1", "model.attention_dropout=0.1"),
    ("train.activation_checkpointing=true",),  # without dropout, whose states have no kernel on meta
    ("data.document_mask=true", "model.attention_dropout=0.1"),
])  # fmt: skip
def test_all_layers_are_one_graph_without_breaks(words: tuple[str, ...], tmp_path: Path) -> None:
    job = checked_job(load(), "megatron_gpt:tiny", (*WORDS, *words), 1, tmp_path)
    assert traced(job, tmp_path / "run") == GraphCounts(graphs=2)  # of training and of evaluation


def test_recomputed_blocks_have_the_gradients_of_those_that_are_kept() -> None:
    """With dropout, to the bit: the same random numbers are drawn again."""
    ids = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
    batch, found = {"tokens": ids, "labels": ids.roll(-1, 1)}, []
    for recomputed in (False, True):
        torch.manual_seed(1)
        module, loss = build(Gpt(layers=3, hidden=32, heads=2, positions=16, vocabulary=64))
        assert module.training
        compile_blocks(module, "blocks.*", {"backend": "aot_eager"})
        if recomputed:
            recompute(module, "blocks.*")
        gradients = []
        for seed in (2, 3):
            torch.manual_seed(seed)
            module.zero_grad()
            loss(module(batch), batch)["loss"].backward()
            gradients.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
        torch._dynamo.reset()
        found.append(gradients)
    assert any(not torch.equal(one, other) for one, other in zip(*found[0], strict=True))  # of two seeds
    for kept, again in zip(*found, strict=True):
        assert all(map(torch.equal, kept, again))


LARGE = ("train.global_batch=16", "train.micro_batch=16", "model.vocabulary=10000")  # logits of more than 32 MB


def test_the_loss_is_a_graph_of_its_own(tmp_path: Path) -> None:
    words = (*WORDS, "train.precision=bf16", "train.eval_every=0", *LARGE)
    job = checked_job(load(), "megatron_gpt:tiny", words, 1, tmp_path)
    assert traced(job, tmp_path / "run") == GraphCounts(graphs=2)  # of the blocks and of the loss


def test_compiled_blocks_compute_the_same_and_keep_their_names() -> None:
    config = Gpt(layers=3, hidden=32, heads=2, positions=16, vocabulary=64, dropout=0.0, attention_dropout=0.0)
    ids = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": ids, "labels": ids.roll(-1, 1)}
    found = []
    for compiled in (False, True):
        torch.manual_seed(1)
        module, loss = build(config)
        names = [list(module.state_dict()), str(module)]
        if compiled:
            compile_blocks(module, "blocks.*", {"backend": "aot_eager"})
        assert [list(module.state_dict()), str(module)] == names
        value = loss(module(batch), batch)["loss"]
        value.backward()  # type: ignore[no-untyped-call]
        found.append([value.detach(), *(p.grad for p in module.parameters())])
    torch._dynamo.reset()
    for eager, one in zip(*found, strict=True):  # attention is another kernel in a graph
        torch.testing.assert_close(one, eager, rtol=1e-4, atol=1e-6)
