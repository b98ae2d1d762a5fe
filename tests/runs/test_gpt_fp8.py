"""A GPT under ``train.precision=fp8``, emulated on the CPU: near bf16's losses, resumed to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.hooks.registry import load
from recipe_core.train.metrics.curves import read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

WORDS = (
    "train.device=cpu", "train.steps=6", "train.log_every=1", "train.eval_every=0", "train.save_every=3",
    "train.warmup_steps=0",
)  # fmt: skip


def losses(out: Path, *words: str) -> list[float]:
    run(checked_job(load(), "megatron_gpt:tiny", (*WORDS, *words), 1, out), out)
    return [row["loss"] for row in read_rows(out / "metrics.jsonl")]


def test_fp8_trains_as_bf16_does_and_resumes_exactly(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    narrow, wide = losses(tmp_path / "fp8", "train.precision=fp8"), losses(tmp_path / "wide", "train.precision=fp32")
    assert narrow != wide
    assert narrow == pytest.approx(wide, rel=0.005)
    assert narrow[-1] < narrow[0]
    losses(tmp_path / "cut", "train.precision=fp8", "train.stop_after=3")
    assert losses(tmp_path / "cut", "train.precision=fp8") == narrow
