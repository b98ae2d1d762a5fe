"""On a CUDA device: a run repeats itself, and continues after a stop, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core.engine.staging import to_host
from recipe_core.ops.documents import Documents, document_attention, documents_of
from recipe_core.testing.runs import command
from recipe_core.train.metrics.curves import read_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LINES = {
    "gpt": ("megatron_gpt:tiny",),
    "gpt, compiled": ("megatron_gpt:tiny", "train.compile=true", "train.precision=bf16_mixed"),
    "gpt, 16 bits": (
        "megatron_gpt:tiny", "train.precision=bf16", "train.stochastic_rounding=true", "model.dropout=0.1",
        "model.attention_dropout=0.1", "train.activation_checkpointing=true",
    ),
    "gpt, on the host": ("megatron_gpt:tiny", "layout=fsdp", "layout.cpu_offload=true"),
    "gpt, 16 bits, compiled": (
        "megatron_gpt:tiny", "train.precision=bf16", "train.stochastic_rounding=true", "model.dropout=0.1",
        "model.attention_dropout=0.1", "train.activation_checkpointing=true", "train.compile=true",
    ),
    "gpt, muon": ("megatron_gpt:tiny", "train.optimizer=muon"),
    "gpt, on the host, compiled": ("megatron_gpt:tiny", "layout=fsdp", "layout.cpu_offload=true", "train.compile=true"),
    "gpt, documents": (
        "megatron_gpt:tiny", "data.document_mask=true", "data.sequence=128", "model.positions=128",
        "model.attention_dropout=0",
    ),
    "llama, documents": ("llama:tiny", "data.document_mask=true", "train.precision=bf16_mixed"),
    "llama, documents, compiled": (
        "llama:tiny", "data.document_mask=true", "data.rows=packed", "train.precision=bf16_mixed", "train.compile=true",
        "model.window=64",
    ),
    "bert": ("bert_dp:tiny",),
    "bert, packed": ("bert_dp:tiny", "data.packed=true", "train.optimizer=lamb", "train.precision=bf16_mixed"),
    "bert, packed, compiled": (
        "bert_dp:tiny", "data.packed=true", "train.precision=bf16_mixed", "train.compile=true", "model.dropout=0.1",
    ),
    "fine-tuning": ("hf_finetune:tiny",),
}  # fmt: skip
MEASURED = ("second", "memory", "flops", "mfu")
"""Parts of the names of metrics in which equal runs differ."""


def train(out: Path, *words: str) -> None:
    """Train 8 steps, or up to where ``words`` stop."""
    settings = ("train.device=cuda", "train.steps=8", "train.save_every=4")
    done = command("run", *words, *settings, "--out", str(out), timeout=300)
    assert done.returncode == 0, done.stdout


def outcome(out: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of metrics without what is measured, and a digest of each file of values in the last checkpoint."""
    files = json.loads((out / "checkpoints" / "step-8" / "checkpoint.json").read_text())["files"]
    kept = [
        {key: row[key] for key in row if not any(word in key for word in MEASURED)}
        for row in read_rows(out / "metrics.jsonl")
    ]
    digests = {name: file["sha256"] for name, file in files.items() if name.endswith((".distcp", ".safetensors"))}
    assert digests
    return kept, digests


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_run_repeats_itself_and_resumes_to_the_bit(line: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("whole", "again"):
        train(tmp_path / name, *line)
    train(tmp_path / "stopped", *line, "train.stop_after=4")
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").glob("step-*")] == ["step-4"]
    train(tmp_path / "stopped", *line)
    whole = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "again") == whole
    assert outcome(tmp_path / "stopped") == whole


def test_copies_for_a_checkpoint_are_equal_and_of_the_same_form() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    large = torch.randn(3000, 1001, generator=generator, device="cuda")
    tensors = [
        large, large.T, large.bfloat16(), large[:, ::2], large[5:], torch.tensor(3, device="cuda"), large[:0],
        torch.randint(1 << 40, (400_000,), generator=generator, device="cuda"), large.requires_grad_(),
    ]  # fmt: skip
    for copy, tensor in zip(to_host(tensors, buffer_size=1 << 20), tensors, strict=True):
        assert copy.device.type == "cpu"
        assert copy.dtype == tensor.dtype
        assert not copy.requires_grad
        assert torch.equal(copy, tensor.detach().cpu())
    assert to_host([large.T])[0].stride() == large.T.stride()


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_flex_attention_keeps_documents_apart_as_the_mask_does(
    dtype: torch.dtype, error: float, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    ends = torch.tensor([[300, 428, 429, 1000], [1, 128, 512, 1024]], device="cuda")
    places = torch.arange(1024, device="cuda")
    ids = (places >= ends[..., None]).sum(1) + 1
    ids = torch.where(places < ends[:, -1:], ids, 0)
    shape = (2, 1024)
    qkv = [
        torch.randn(*shape, heads, 64, generator=generator, device="cuda").to(dtype).requires_grad_()
        for heads in (4, 2, 2)
    ]
    weights = torch.randn(*shape, 4, 64, generator=generator, device="cuda")

    def found(choice: str) -> tuple[Documents, list[torch.Tensor]]:
        monkeypatch.setenv("RECIPE_DOCUMENTS", choice)
        torch.cuda.set_sync_debug_mode("error")
        documents = documents_of(ids, window)
        torch.cuda.set_sync_debug_mode("default")
        output = document_attention(*qkv, documents, 0.0)
        return documents, [output.detach(), *torch.autograd.grad((output.float() * weights).sum(), qkv)]

    (blocks, ours), (mask, theirs) = found("flex"), found("mask")
    assert blocks.blocks is not None
    assert mask.mask is not None
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=error, rtol=error)
