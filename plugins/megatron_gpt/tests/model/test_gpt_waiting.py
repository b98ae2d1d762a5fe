"""GPT's steps on a device that the host does not wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.hooks.registry import load
from recipe_core.testing.waiting import readings
from recipe_core.train.start.check import checked_job


@pytest.mark.parametrize("words", [
    ("model.dropout=0.1", "model.attention_dropout=0.1", "train.activation_checkpointing=true"),
    ("train.precision=bf16", "train.optimizer_states=master", "train.global_batch=4"),
])  # fmt: skip
def test_the_host_waits_only_where_a_row_is_read(words: tuple[str, ...], tmp_path: Path) -> None:
    settings = ("train.steps=3", "train.log_every=100", "train.eval_every=0", "train.micro_batch=2", *words)
    assert readings(checked_job(load(), "megatron_gpt:tiny", settings, 1, tmp_path), tmp_path / "run") == 1
