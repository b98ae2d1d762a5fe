"""Full disks at each file of a run, of one process and of two, and of a data set: message, exit code, exact resume."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="tmpfs as Linux has it")]
CAMPAIGN = Path(__file__).parent / "campaign"
EACH_PLACE = """
import os, sys
from pathlib import Path
sys.path.insert(0, {campaign!r})
import disks, filled, forked, slowed
processes, folder = int(sys.argv[1]), Path(sys.argv[2])
if why := filled.unavailable():
    print("unavailable:", why)
    sys.exit()
forked.adopt()
os.environ["RECIPE_CACHE"] = str(folder / "cache")
assert slowed.again(folder / f"whole-{{processes}}", processes).code == 0
places = [place for place in disks.PLACES if processes == 2 or place not in disks.OF_TWO]
for number, place in enumerate(places):
    fault = disks.Fault(place, filled.KINDS[(number + processes) % 2], 0, 0, processes)
    (case := folder / str(number)).mkdir()
    violation = disks.attempt(fault, folder, case)
    if not violation and not (case / "fired").exists():
        violation = "the disk was never filled"
    if violation:
        print(f"{{fault}}: {{violation}}")
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_each_place(tmp_path: Path, processes: int) -> None:
    program = EACH_PLACE.format(campaign=str(CAMPAIGN))
    done = subprocess.run(
        [sys.executable, "-c", program, str(processes), str(tmp_path)], capture_output=True, text=True, timeout=580,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    if done.stdout.startswith("unavailable:"):
        pytest.skip(done.stdout)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def prepare(output: Path, text: Path) -> subprocess.CompletedProcess[str]:
    words = ["gpt_indexed", f"inputs={text}", "documents=blank_line", "workers=1", f"output={output}"]
    return subprocess.run(
        [sys.executable, "-m", "recipe_core.cli", "prepare", *words], capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(("kind", "lefts"), [("bytes", (0, 50, 150)), ("inodes", (0, 1, 2))])
def test_prepared_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, lefts: tuple[int, ...]) -> None:
    """It resumes each time with a little more room, and ends with the same files."""
    monkeypatch.syspath_prepend(str(CAMPAIGN))
    import filled

    if why := filled.unavailable():
        pytest.skip(why)
    text = tmp_path / "text"
    text.write_text("".join(f"This is line {n} of a text that is not very long.\n\n" for n in range(20_000)))
    assert prepare(tmp_path / "whole", text).returncode == 0
    with filled.mounted(tmp_path / "disk") as disk:
        for left in lefts:
            filled.fill(disk, kind, left)
            done = prepare(disk / "data", text)
            assert done.returncode == 74, done.stderr
            (said,) = (line for line in done.stderr.splitlines() if line.startswith("recipe prepare: "))
            assert f"{disk}" in said
            assert "No space left on device" in said or "MB are free" in said
            assert "free some space" in said or "remove some files" in said
            assert not (disk / "data").exists()
            filled.make_room(disk)
        assert prepare(disk / "data", text).returncode == 0
        assert digests(disk / "data") == digests(tmp_path / "whole")
