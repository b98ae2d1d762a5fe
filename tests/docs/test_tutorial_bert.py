"""The tutorial from text to a classifier: its commands as they stand, one after the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from page_commands import commands, type_command

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "bert.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_commands_work(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Four commands")[1].split("## ")[0]
    lines = commands(section)
    assert len(lines) == 4
    for line in lines:
        type_command(line, tmp_path)
    results = json.loads((tmp_path / "runs" / "pairs" / "results.json").read_text())
    assert results["step"] == results["steps"]
    assert {"accuracy", "f1"} <= results.keys()
    assert (tmp_path / "runs" / "pairs" / "model" / "tokenizer.json").is_file()
