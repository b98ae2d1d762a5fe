"""Exit codes of real runs, of one process and of two: those of docs/reference/exit-codes.md, and without a traceback.

Ranks that hang and full disks have tests of their own (core/tests/train/test_hangs.py, checkpoint/test_disk_full.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe_core.errors import ExitCode

pytestmark = pytest.mark.slow
ROWS = [
    (ExitCode.FINISHED, ("train.stop_after=1",)),
    (ExitCode.FINDING, ("train.golden={}/golden.txt",)),
    (ExitCode.MISTAKE, ("train.lr=-1",)),
    (ExitCode.DIVERGED, ("train.lr=1e30",)),
    (ExitCode.STOPPED, ("train.steps=100000",)),
]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("recipe", ["megatron_gpt:tiny", "hf_finetune:tiny"])
def test_the_code_of_a_run(tmp_path: Path, recipe: str, processes: int) -> None:
    (tmp_path / "golden.txt").write_text("123\n" * 8)
    for code, words in ROWS:
        if (code, recipe) == (ExitCode.FINDING, "hf_finetune:tiny"):  # whose Trainer has no golden curve
            continue
        out = tmp_path / code.name
        line = [recipe, *(word.format(tmp_path) for word in words), "--processes", str(processes), "--out", str(out)]
        with subprocess.Popen(
            [sys.executable, "-m", "recipe_core.cli", "run", *line], start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as process:  # fmt: skip
            if code is ExitCode.STOPPED:
                deadline = time.monotonic() + 60
                while not (out / "metrics.jsonl").is_file() and time.monotonic() < deadline:
                    time.sleep(0.05)
                process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=120)[0]
        assert process.returncode == code, said
        assert "Traceback" not in said
        if code in (ExitCode.FINISHED, ExitCode.STOPPED) and (out / "results.json").is_file():
            assert json.loads((out / "results.json").read_text())["exit_code"] == code
