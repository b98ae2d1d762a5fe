"""The page from a text to a Hugging Face folder: its commands in order, with less training."""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path

import pytest
from page_commands import commands, type_command

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "chain.md"
LESS = {
    "recipe run llama": ("train.steps=20", "train.warmup_steps=2", "train.eval_every=10"),
    "recipe run hf_finetune": ("data.pairs=64", "train.epochs=null", "train.steps=4"),
}
"""Settings that shorten a command, by its first words."""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_its_commands_work_in_order(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text(Path(argparse.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    lines = commands(PAGE.read_text(encoding="utf-8"))
    outputs = {line: type_command(line, tmp_path, *LESS.get(" ".join(line.split()[:3]), ())) for line in lines}
    assert len(outputs) == len(lines) == 9

    names, values = (row.split() for row in outputs["recipe eval runs/my"].splitlines())
    assert 1 < float(dict(zip(names, values, strict=True))["perplexity"]) < 8192
    (read_by_transformers,) = (output for line, output in outputs.items() if line.startswith("python "))
    (continued,) = ast.literal_eval(read_by_transformers.splitlines()[-1])
    assert continued["generated_text"].startswith("Once upon a time")
    for folder in ("my", "more"):
        assert json.loads((tmp_path / "runs" / folder / "results.json").read_text("utf-8"))["step"] == 20
    classes = json.loads((tmp_path / "runs" / "classes" / "results.json").read_text("utf-8"))
    assert [leg["random_start"] for leg in classes["legs"]] == [False, True]
    assert all(0 <= leg["metrics"]["accuracy"] <= 1 for leg in classes["legs"])
