"""The log that a rank of torchrun or srun keeps of itself."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe_core.errors import DiskError, LaunchError
from recipe_core.launch.tee import keep
from recipe_core.launch.worker import Worker, keep_log, refuse_processes

RANK = Worker(3, 4, 1, 2, "torchrun", {})
PROGRAM = """
import os, sys
from pathlib import Path
from recipe_core.launch.tee import keep
keep(Path(sys.argv[1]))
print("to stdout")
print("to stderr", file=sys.stderr, flush=True)
os.system("echo from a child")
sys.stdout.flush()
os.abort()
"""


def test_the_log_has_the_last_words_of_a_rank_that_dies(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rank-3.log"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, str(log)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -6
    assert sorted(done.stdout.splitlines()) == ["from a child", "to stdout"]  # shown as before
    assert done.stderr.startswith("to stderr\n")
    deadline = time.monotonic() + 60
    while "File " not in log.read_text():  # the stack of the abort
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert {"from a child", "to stdout", "to stderr"} <= set(log.read_text().splitlines())


def test_only_ranks_of_other_launchers_keep_their_logs(tmp_path: Path) -> None:
    keep_log(None, tmp_path / "logs")
    keep_log(Worker(0, 2, 0, 2, "recipe", {}), tmp_path / "logs")  # whose supervisor does
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(DiskError, match="the log of this rank cannot be written"):
        keep(tmp_path / "logs" / "rank-0.log")


def test_processes_are_not_started_beside_a_launchers() -> None:
    refuse_processes(None, 2)
    refuse_processes(RANK, None)
    with pytest.raises(LaunchError, match="--processes: torchrun started this process already, as rank 3 of 4; leave"):
        refuse_processes(RANK, 2)
