"""Hangs and slow ranks in the Trainer's loop are reported with their rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.errors import ExitCode

# `recipe ARGS`, where rank 1 sleeps in one method of the Trainer's run from the third step on.
PROGRAM = """
import os, sys, time
from pathlib import Path
from recipe_core.cli import main as cli
from recipe_core.launch import supervisor
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.testing.forked_rank import ForkedRank
from recipe_core.testing.unhurried import measure_own_time, watch_from
from recipe_hf_finetune.trainer.arguments import prepare_environment
prepare_environment()
from recipe_hf_finetune.data.encode import Encoded
from recipe_hf_finetune.model import classifier
from recipe_core.train import run

def hang(owner, name):
    method = getattr(owner, name)
    def sleeping(*args, **kwargs):
        if os.environ.get("RANK") == "1" and beat.step >= 3:
            injected.touch()
            time.sleep(3600)
        return method(*args, **kwargs)
    setattr(owner, name, sleeping)

injected = Path("injected").absolute()
watch_from(injected)  # train.timeout counts from the fault on, however long the ranks take to start
measure_own_time()
supervisor.Popen = ForkedRank
if sys.argv[1] == "loader":
    hang(Encoded, "__getitem__")
else:
    import torch
    hang(torch.nn.Embedding, "forward")
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "text"),
    [("loader", "'loader' of step 3"), ("model", "'forward' of step 3, micro batch 0")],
)
def test_a_hang_in_the_trainer(tmp_path: Path, fault: str, text: str) -> None:
    args = ["run", "hf_finetune:tiny", "--processes", "2", "--out", "run", "train.timeout=3", "train.steps=6"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, fault, *args],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.HUNG, done.stderr
    assert "rank 1 of 2 (host " in done.stderr
    assert f") has been in {text} for" in done.stderr
    assert "in sleeping" in done.stderr  # the stack
    record = json.loads((tmp_path / "run" / "logs" / "rank-1.beat.json").read_text())
    assert record["ended"]["verdict"]["ranks"] == [1]


@pytest.mark.slow
def test_the_slowest_rank_in_the_rows(tmp_path: Path) -> None:
    args = ["run", "hf_finetune:tiny", "--processes", "2", "--out", "run", "train.log_stragglers=true"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("3600", "0.3"), "model", *args, "train.steps=16", "train.log_every=1",
         "train.timeout=60"],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: rank 1 (host ") == 1
    rows = [json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["slowest_rank"] == 1
    assert rows[-1]["slowest_rank_seconds"] > 0.3 > rows[-1]["median_rank_seconds"]
