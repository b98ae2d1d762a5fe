"""Two hosts that were not started alike refuse to train, and say what differs. Through the real command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from simulated_hosts import Hosts, two_hosts, unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(unavailable() is not None, reason=unavailable() or ""),
]
LINE = ("train.steps=2", "train.log_every=1", "train.eval_every=0", "train.timeout=60")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with two_hosts() as both:
        yield both


def run(
    hosts: Hosts, folder: Path, *words: str, second: tuple[str, ...] = (), **environment: str
) -> tuple[list[int], list[str]]:
    """Exit codes and outputs of a run on both; the second host has further words and variables."""
    line = [sys.executable, "-m", "recipe_core.cli", "run", "megatron_gpt:tiny", *LINE, *words]
    out = ["--out", str(folder / "shared" / "run")]
    processes = [
        hosts.rank(0, [*line, *out], folder),
        hosts.rank(1, [*line, *second, *out], folder, **environment),
    ]
    try:
        codes = [process.wait(120) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [-1, -1]
    return codes, [(folder / f"rank-{number}.txt").read_text() for number in range(2)]


def refused(found: tuple[list[int], list[str]], *texts: str) -> None:
    """Both ends say it, with both values, the ranks and the hosts."""
    codes, outputs = found
    assert codes == [2, 2], outputs
    for output in outputs:
        assert "Traceback" not in output
        for text in texts:
            assert text in output


@pytest.mark.parametrize(
    ("word", "other", "text"),
    [
        ("train.steps=8", "train.steps=6", "train.steps: 8 on rank 0 (first), 6 on rank 1 (second)"),
        pytest.param(
            "train.lr=0.001", "train.lr=0.01", "train.lr: 0.001 on rank 0 (first), 0.01 on rank 1 (second)",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "train.seed=1", "train.seed=2", "train.seed: 1 on rank 0 (first), 2 on rank 1 (second)",
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_another_setting(hosts: Hosts, tmp_path: Path, word: str, other: str, text: str) -> None:
    refused(run(hosts, tmp_path, word, second=(other,)), text)
    logs = tmp_path / "shared" / "run" / "logs"
    assert [path.name for path in (tmp_path / "shared" / "run").iterdir()] == ["logs"]  # nothing else is left of it
    assert all(text in (logs / f"rank-{rank}.log").read_text() for rank in range(2))


@pytest.mark.long
def test_another_version_of_a_plugin(hosts: Hosts, tmp_path: Path) -> None:
    name = "recipe-megatron-gpt"
    folder = tmp_path / "other" / "recipe_megatron_gpt-9.9.9.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9.9\n")
    (folder / "entry_points.txt").write_text(metadata.distribution(name).read_text("entry_points.txt") or "")
    found = run(hosts, tmp_path, PYTHONPATH=str(folder.parent))
    refused(found, f"package {name}: {metadata.version(name)} on rank 0 (first), 9.9.9 on rank 1 (second)")


def test_another_code_of_a_plugin(hosts: Hosts, tmp_path: Path) -> None:
    import recipe_megatron_gpt

    copy = tmp_path / "other" / "recipe_megatron_gpt"
    shutil.copytree(Path(str(recipe_megatron_gpt.__file__)).parent, copy)
    with (copy / "plugin.py").open("a") as file:
        file.write("# another line\n")
    refused(run(hosts, tmp_path, PYTHONPATH=str(copy.parent)), "code recipe_megatron_gpt/plugin.py: ")


def test_another_file_under_the_same_name(hosts: Hosts, tmp_path: Path) -> None:
    golden, other = tmp_path / "curve.txt", tmp_path / "other.txt"
    golden.write_text("6.9\n6.8\n")
    other.write_text("6.9\n6.8\n6.7\n")
    hosts.second.run("mount", "--bind", str(other), str(golden))
    found = run(hosts, tmp_path, f"train.golden={golden}")
    refused(found, f"train.golden: {golden}: 8 bytes, which begin with", "12 bytes, which begin with")


@pytest.mark.long
def test_a_variable_that_changes_the_result(hosts: Hosts, tmp_path: Path) -> None:
    found = run(hosts, tmp_path, NVIDIA_TF32_OVERRIDE="0")
    refused(found, "variable NVIDIA_TF32_OVERRIDE: not there on rank 0 (first), 0 on rank 1 (second)")


def test_a_run_folder_of_one_host_alone(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    hosts.second.run("mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "shared"))
    found = run(hosts, tmp_path)
    refused(
        found, "not all ranks see what rank 0 writes into it", "there on rank 0 (first), not there on rank 1 (second)"
    )
    assert [path.name for path in (tmp_path / "shared" / "run").iterdir()] == ["logs"]


def test_two_hosts_that_agree_train(hosts: Hosts, tmp_path: Path) -> None:
    codes, outputs = run(hosts, tmp_path)
    assert codes == [0, 0], outputs
    assert (tmp_path / "shared" / "run" / "checkpoints" / "step-2").is_dir()
