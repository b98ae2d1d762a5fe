"""BERT's blocks under ``train.compile`` on a device other than a CPU: one graph for all layers, without breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.hooks.registry import load
from recipe_core.testing.compiling import GraphCounts, traced
from recipe_core.train.start.check import checked_job

ARGS = (
    "train.compile=true", "train.precision=fp32", "train.steps=4", "train.eval_every=2", "train.eval_samples=4",
    "train.global_batch=4", "train.micro_batch=2", "model.layers=4", "model.dropout=0.1", "model.attention_dropout=0.1",
)  # fmt: skip


@pytest.mark.parametrize("packed", ["false", "true"])
def test_all_layers_are_one_graph_without_breaks(packed: str, tmp_path: Path) -> None:
    job = checked_job(load(), "bert_dp:tiny", (*ARGS, f"data.packed={packed}"), 1, tmp_path)
    assert traced(job, tmp_path / "run") == GraphCounts(graphs=2)  # of training and of evaluation
