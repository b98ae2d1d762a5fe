"""Signals at random moments while a run starts: none is lost, none ends in a traceback."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe_core.errors import ExitCode

COUNT = 5
"""Signals a test; a seed of its own for each number of processes. By hand: more, with RECIPE_SIGNALS."""


def until_it_takes_signals(process: subprocess.Popen[str]) -> None:
    """Wait for the command to catch SIGTERM: before that, the interpreter itself starts."""
    deadline, caught = time.monotonic() + 60, 0
    while not caught >> (signal.SIGTERM - 1) & 1:
        assert time.monotonic() < deadline
        time.sleep(0.001)
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_starts_is_stopped(tmp_path: Path, processes: int) -> None:
    chance = random.Random(processes)
    for number in range(int(os.environ.get("RECIPE_SIGNALS", COUNT))):
        stop, moment = chance.choice([signal.SIGINT, signal.SIGTERM]), chance.uniform(0, 4)
        line = ["run", "megatron_gpt:tiny", "train.steps=100000", "--processes", str(processes), "--out"]
        with subprocess.Popen(
            [sys.executable, "-m", "recipe_core.cli", *line, str(tmp_path / str(number))], start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as process:  # fmt: skip
            until_it_takes_signals(process)
            time.sleep(moment)
            process.send_signal(stop)
            said = process.communicate(timeout=120)[0]
        case = f"{stop.name} after {moment:.2f} s: exit code {process.returncode}\n{said}"
        assert process.returncode == ExitCode.STOPPED, case
        assert "Traceback" not in said, case
