"""The campaign of faults: its cases depend on the seed alone, and what fails is kept with the line that repeats it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and signals as Linux has them")
CAMPAIGN = Path(__file__).parent / "campaign"


def campaign(*words: str, folder: Path, timeout: float = 580) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(CAMPAIGN), *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.long
def test_stops_in_all_phases_change_no_curve(tmp_path: Path) -> None:
    done = campaign("--only", "stops", "--cases", "12", "--seed", "3", "--minutes", "8", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


BROKEN = """
import sys
sys.path.insert(0, {campaign!r})
from cases import Family
import runpy
main = runpy.run_path({campaign!r} + "/__main__.py", run_name="campaign")
def attempt(case, base, folder):
    (folder / "file").write_text("it")
    return "" if case < 5 else "too large"
main["FAMILIES"].clear()
main["FAMILIES"]["numbers"] = Family("numbers", 1, lambda chance: chance.randrange(10), attempt)
sys.exit(main["main"](sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_violation_is_kept_and_repeated(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = BROKEN.format(campaign=str(CAMPAIGN))
        line = [sys.executable, "-c", program, "--seed", "3", *words]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)

    first = run("--cases", "12")
    assert first.returncode == 1, first.stdout + first.stderr
    kept = sorted((tmp_path / "fault-cases" / "seed-3").iterdir())
    assert 0 < len(kept) < 12
    assert f"numbers{'12':>13}{12 - len(kept):>10}{len(kept):>12}" in first.stdout
    case, violation, line = (kept[0] / "case.txt").read_text().splitlines()
    assert (int(case) >= 5, violation) == (True, "too large")
    assert (kept[0] / "file").read_text() == "it"
    number = kept[0].name.partition("-")[2]
    assert line == f"python tests/faults/campaign --seed 3 --only numbers --case {number}"
    again = run("--only", "numbers", "--case", number)
    assert again.returncode == 1
    assert f"{case}: too large" in again.stdout
