"""Parts of a preparation as array jobs of a real Slurm: bytes, killed parts and nodes, Ctrl-C.

``nox -s slurm`` runs these tests, where Slurm's daemons are installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, cluster, missing

from recipe_core.testing.packages import install_plugin

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(900),
]
PLUGIN = Path(__file__).parents[2] / "core" / "tests" / "cli" / "plugin"
LINE = ("prepare", "mortal", "inputs=lines.jsonl")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster, and run the tests in its folder; ``mortal_data`` is its only plugin."""
    folder = tmp_path_factory.mktemp("slurm")
    install_plugin(folder / "site", "mortal", "mortal_data")
    paths = [str(folder / "site"), str(PLUGIN), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("RECIPE_PLUGINS", "mortal")
        patch.chdir(folder)
        Path("lines.jsonl").write_text("".join(f'{{"text": "document {number}"}}\n' for number in range(40)))
        Path("orders").mkdir()
        with cluster(folder) as started:
            started.recipe(*LINE, "output=whole")
            yield started


def make(here: Cluster, output: str, parts: int = 4) -> subprocess.Popen[str]:
    words = (*LINE, f"output={output}", "--on", "slurm", "--parts", str(parts))
    return subprocess.Popen(
        [sys.executable, "-m", "recipe_core.cli", *words], env=here.environment, stderr=subprocess.PIPE, text=True
    )


def ended(making: subprocess.Popen[str]) -> str:
    """Wait for a command that succeeds; return what it said."""
    _, said = making.communicate(timeout=400)
    assert making.returncode == 0, said
    return said


def same(output: str) -> None:
    """Compare with one process, and look for what was left behind."""
    files = {path.name: path.read_bytes() for path in Path(output).iterdir()}
    assert files == {path.name: path.read_bytes() for path in Path("whole").iterdir()}
    assert list(Path().glob(f"*{output}.*")) == []


def test_a_killed_part_starts_again(here: Cluster) -> None:
    for number in (9, 15):
        Path(f"orders/2.{number}").touch()
    said = ended(make(here, "killed"))
    assert "part 2/4: killed by signal 15; it starts again (start 2 of at most 4)" in said
    assert "part 2/4: killed by signal 9 (out of memory is the usual cause); it starts again (start 3 of" in said
    same("killed")


def test_a_part_on_a_lost_node_starts_again(here: Cluster) -> None:
    """By Slurm itself, which puts the task back."""
    Path("orders/1.wait").touch()
    making = make(here, "lost", 2)
    here.wait(lambda: Path("orders/1.waits").exists(), 120, "the first part")
    Path("orders/1.wait").unlink()
    node = here.run("squeue", "--noheader", "--states=RUNNING", "--format=%N").split()[0]
    here.kill_node(node)
    here.start_node(node)
    ended(making)
    same("lost")


def test_a_cancelled_task_does_not_start_again_and_the_same_command_goes_on(here: Cluster) -> None:
    Path("orders/2.wait").touch()
    making = make(here, "cancelled", 2)
    here.wait(lambda: Path("orders/2.waits").exists(), 120, "the second part")
    (job,) = here.run("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%F_%K").split()
    here.run("scancel", job)
    _, said = making.communicate(timeout=400)
    assert making.returncode == 1, said
    assert "1 of 2 parts failed" in said
    assert "part 2/2: cancelled" in said
    Path("orders/2.wait").unlink()
    ended(make(here, "cancelled", 2))
    same("cancelled")


def test_ctrl_c_ends_the_jobs(here: Cluster) -> None:
    Path("orders/2.waits").unlink(missing_ok=True)
    Path("orders/2.wait").touch()
    making = make(here, "interrupted", 3)
    here.wait(lambda: Path("orders/2.waits").exists(), 120, "the second part")
    making.send_signal(signal.SIGINT)
    _, said = making.communicate(timeout=120)
    assert making.returncode == 130, said
    assert "interrupted.parts keeps the parts, and the same command makes only the others" in said
    here.wait(lambda: not here.run("squeue", "--noheader").strip(), 120, "end of the jobs")
    Path("orders/2.wait").unlink()
    ended(make(here, "interrupted", 3))
    same("interrupted")


def test_more_parts_than_an_array_has(here: Cluster) -> None:
    """Slurm's limit is 1,000; here it is made 3."""
    conf = here.folder / "slurm.conf"
    conf.write_text(f"{conf.read_text()}MaxArraySize=4\n")
    here.run("scontrol", "reconfigure")
    here.wait(lambda: "MaxArraySize            = 4" in here.run("scontrol", "show", "config"), 60, "reconfiguration")
    said = ended(make(here, "many", 9))
    assert "9 of 9 parts" in said
    same("many")
