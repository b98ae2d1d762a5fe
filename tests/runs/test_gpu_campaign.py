"""``benchmarks/gpu --dry``: every kind of part runs in tiny sizes on the CPU, and what is done is not repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu"
CASES = ("bert-large-512-packed", "gpt2-124m", "finetune-pairs")


def campaign(out: Path, *words: str) -> str:
    """The output of the command."""
    only = [word for case in CASES for word in ("--only", case)]
    line = [sys.executable, str(SCRIPT), "--dry", "--out", str(out), "--minutes", "30", *only, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RECIPE_CACHE": str(out / "cache")}
    return subprocess.run(line, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.mark.slow
def test_a_dry_campaign_measures_every_part_and_goes_on_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    said = campaign(tmp_path)
    for case in CASES:
        parts = json.loads((tmp_path / f"{case}.json").read_text())["parts"]
        failed = {name: part["failed"] for name, part in parts.items() if "failed" in part}
        assert set(failed) <= {"megatron-core", *([] if find_spec("torchao") else ["recipe-fp8"])}, failed
        assert parts["recipe"]["per_second"] > 0
        assert parts["trainer"]["per_second"] > 0
        assert f"{case}, recipe: " in said
    assert "no time was left" not in said
    again = campaign(tmp_path)
    assert ", recipe: " not in again
    assert (tmp_path / "gpu.md").read_text() in again
