"""A stop in each phase of a run, by the program that stops runs at random."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_a_stop_in_each_phase_ends_with_75_and_changes_no_curve() -> None:
    program = Path(__file__).parent / "faults" / "stops.py"
    line = [sys.executable, str(program), "--stops", "9", "--seed", "3", "--at-once", "3"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("9 stops, 0 violations\n")
