"""Ranks that torchrun starts and restarts, with the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.cli.cluster.status import saved_step
from recipe_core.testing import run_tiny
from recipe_core.train.metrics.curves import read_rows

WORDS = ("train.steps=6", "train.save_every=2", "train.log_every=1", "train.eval_every=0", "train.timeout=60")
# Rank 1 dies in its fourth step, the first time.
DIES = """
import os, sys
from recipe_core.train.step import Stepper
step = Stepper.step
def stepping(self, *, last):
    if self.progress.step == 3 and self.engine.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(9)
    return step(self, last=last)
Stepper.step = stepping
from recipe_core.cli.__main__ import main
sys.exit(main())
"""


def torchrun(*words: str, restarts: int = 0) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        f"--max-restarts={restarts}", *words,
    ]  # fmt: skip


@pytest.mark.slow
def test_ranks_that_are_started_again_finish_with_the_same_curve(tmp_path: Path) -> None:
    program, out = tmp_path / "program.py", tmp_path / "run"
    program.write_text(DIES)
    done = subprocess.run(
        torchrun(str(program), "run", "megatron_gpt:tiny", *WORDS, "--out", str(out), restarts=2),
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    whole = run_tiny("megatron_gpt", tmp_path / "whole", *WORDS, "--processes", "2")
    assert {row["step"]: row["loss"] for row in read_rows(out / "metrics.jsonl")} == whole.column("loss")
    logs = [(out / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert logs[0].count("2 x cpu, 1 thread, fp32") == 2  # of both attempts
    assert "finished 6 steps" in logs[0]


@pytest.mark.slow
def test_ranks_whose_torchrun_is_killed_save_and_stop(tmp_path: Path) -> None:
    """Otherwise they would be orphans that keep running on a node that is already given to other jobs."""
    out, words = tmp_path / "run", ("megatron_gpt:tiny", *WORDS, "train.steps=100000", "train.save_every=0")
    log = out / "logs" / "rank-0.log"
    with subprocess.Popen(
        torchrun("--no-python", "recipe", "run", *words, "--out", str(out)),
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as agent:  # fmt: skip
        assert agent.stderr is not None
        until(lambda: (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_bytes().count(b"\n") > 3)
        agent.kill()
        agent.stderr.read()  # which ends with the last of the ranks
    assert f"torchrun, process {agent.pid}, is gone" in log.read_text()
    results = json.loads((out / "results.json").read_text())
    assert (results["stopped"], results["exit_code"]) == ("SIGUSR1", 75)
    step = read_rows(out / "metrics.jsonl")[-1]["step"]
    assert saved_step(out) == step >= 3


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
