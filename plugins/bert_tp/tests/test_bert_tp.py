"""The recipe against bert_dp, whose tensor-parallel form it is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import recipe_bert_tp
from recipe_core.hooks.registry import load
from recipe_core.settings.job import resolve
from recipe_core.testing import run_tiny
from recipe_core.train.start.check import checked_job


def test_the_curve_equals_that_of_bert_dp(tmp_path: Path) -> None:
    """The recipe starts its two processes."""
    alone = run_tiny("bert_dp", tmp_path / "dp", "model.attention_dropout=0")
    parallel = run_tiny("bert_tp", tmp_path / "tp")
    assert (alone.results["world_size"], parallel.results["world_size"]) == (1, 2)
    for key in ("loss", "grad_norm", "mlm_loss", "nsp_loss", "val_loss"):
        assert parallel.column(key) == pytest.approx(alone.column(key), abs=1e-5), key


def test_the_default_has_the_settings_of_bert_dp() -> None:
    tp, dp = (resolve(load(), name) for name in ("bert_tp", "bert_dp"))
    assert (tp.model, tp.data, tp.train) == (dp.model, dp.data, dp.train)


def test_large_is_the_published_recipe() -> None:
    job = checked_job(load(), "bert_tp:large", [], 32)
    assert job.axes(32) == {"dp": 4, "tp": 8}
    assert job.train.global_batch == 4 * 64 * 64
    sizes = job.model.config.sizes
    assert (sizes.hidden, sizes.vocabulary % 8) == (1024, 2)  # its vocabulary does not divide by eight


def test_it_imports_no_other_plugin() -> None:
    for path in Path(recipe_bert_tp.__path__[0]).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(name.startswith("recipe_bert_dp") for name in imported), path
