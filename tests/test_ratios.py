"""Stored results of benchmarks: their ratios, falls, and the table in benchmarks/README.md."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def ratios() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ratios", BENCHMARKS / "ratios.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ratios"] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def test_a_ratio_that_fell_is_named_with_both_figures(ratios: ModuleType) -> None:
    row = ratios.Row("gather", "batches", 10.0, 100.0, 10.0, None, "samples/s", "3", "one machine", "2026-01-02")
    stored = [row, replace(row, case="gone")]
    assert ratios.falls(stored, [replace(row, ratio=8.51), replace(row, case="new", ratio=0.1)]) == []
    assert ratios.falls(stored, [replace(row, ratio=8.4)]) == [
        "gather, batches: 8.40 times the peer, stored 10.00 of 2026-01-02 (a fall of 16%)"
    ]
    (line,) = ratios.falls(stored, [replace(row, ratio=5.0, machine="another")])
    assert line.endswith("(a fall of 50%; stored on one machine, now another)")


def test_seconds_and_rates_both_give_how_many_times_better_ours_is(ratios: ModuleType) -> None:
    step = {"results": {"every step": {"recipe_ms": 20.0, "bare_ms": 10.0, "date": "2026-03-01"}}, "rounds": 4}
    (row,) = ratios.rows_of("step", {**step, "processor": "this", "date": "2026-05-05"})
    assert (row.ratio, row.rounds, row.machine, row.date) == (0.5, "4", "this", "2026-03-01")
    gather = {"median": {"recipe": 30, "megatron_core": 10}, "all": {"recipe": [1, 2]}}
    (row,) = ratios.rows_of("gather", gather)
    assert (row.ratio, row.rounds, row.date) == (3.0, "2", "-")


def test_every_script_that_stores_a_result_has_rows(ratios: ModuleType) -> None:
    scripts = {
        path.stem for path in BENCHMARKS.rglob("[a-z]*.py") if "common.write(" in path.read_text(encoding="utf-8")
    }
    assert scripts == set(ratios.FIGURES)
    described = (BENCHMARKS / "README.md").read_text(encoding="utf-8").splitlines()
    for name in scripts:
        stored = BENCHMARKS / "results" / f"{name}.json"
        (row,) = (line for line in described if line.startswith("| [") and f"/{name}.py)" in line)
        if "not measured yet" in row:
            assert not stored.exists(), name
        else:
            assert list(ratios.rows_of(name, json.loads(stored.read_text(encoding="utf-8")))), name


def test_the_table_is_that_of_the_stored_results(ratios: ModuleType) -> None:
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert f"{ratios.MARKS[0]}\n{ratios.table()}\n{ratios.MARKS[1]}" in text
