"""Ranks that torchrun starts, and starts again. Through the real command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.testing import run_tiny
from recipe_core.train.metrics.curves import read_rows

WORDS = ("train.steps=6", "train.save_every=2", "train.log_every=1", "train.eval_every=0", "train.timeout=60")
# Rank 1 dies in its fourth step, the first time.
DIES = """
import os, sys
from recipe_core.train import loop
step = loop.Trainer.step
def stepping(self, *, last):
    if self.progress.step == 3 and self.engine.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(9)
    return step(self, last=last)
loop.Trainer.step = stepping
from recipe_core.cli.__main__ import main
sys.exit(main())
"""


@pytest.mark.slow
def test_ranks_that_are_started_again_finish_with_the_same_curve(tmp_path: Path) -> None:
    program, out = tmp_path / "program.py", tmp_path / "run"
    program.write_text(DIES)
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2",
            str(program), "run", "megatron_gpt:tiny", *WORDS, "--out", str(out),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    whole = run_tiny("megatron_gpt", tmp_path / "whole", *WORDS, "--processes", "2")
    assert {row["step"]: row["loss"] for row in read_rows(out / "metrics.jsonl")} == whole.column("loss")
    logs = [(out / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert logs[0].count("2 x cpu, fp32") == 2  # of both attempts
    assert "finished 6 steps" in logs[0]
