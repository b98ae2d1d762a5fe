"""Steps of BERT, with plain and packed rows, do not synchronise the host with the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.hooks.registry import load
from recipe_core.testing.waiting import readings
from recipe_core.train.start.check import checked_job


@pytest.mark.parametrize("args", [
    ("train.optimizer=lamb", "model.dropout=0.1", "model.attention_dropout=0.1"),
    ("train.precision=bf16", "train.stochastic_rounding=true"), ("data.packed=true",),
])  # fmt: skip
def test_the_host_waits_only_where_a_row_is_read(args: tuple[str, ...], tmp_path: Path) -> None:
    settings = ("train.steps=3", "train.log_every=100", "train.eval_every=0", "train.micro_batch=2", *args)
    assert readings(checked_job(load(), "bert_dp:tiny", settings, 1, tmp_path), tmp_path / "run") == 1
