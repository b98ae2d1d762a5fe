"""The tutorial from text to a classifier: its commands as they stand, one after the other."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "bert.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_commands_work(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Four commands")[1]
    (block,) = re.findall(r"```bash\n(.*?)```", section.split("## ")[0], re.DOTALL)
    lines = block.replace("\\\n", " ").splitlines()
    assert len(lines) == 4
    for line in lines:
        done = subprocess.run(
            [sys.executable, "-m", "recipe_core.cli", *shlex.split(line)[1:]], cwd=tmp_path, capture_output=True,
            text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    results = json.loads((tmp_path / "runs" / "pairs" / "results.json").read_text())
    assert results["step"] == results["steps"]
    assert {"accuracy", "f1"} <= results.keys()
    assert (tmp_path / "runs" / "pairs" / "model" / "tokenizer.json").is_file()
