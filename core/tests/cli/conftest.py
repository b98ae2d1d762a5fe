"""A command line with the toy as the only plugin, and imitations of Slurm's commands."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.cli.main import main
from recipe_core.testing.packages import install_plugin

SITE = """
device_memory_gb: 80
devices_per_node: 4
program: /opt/recipe/bin/recipe
setup: |
  module load cuda
  source "/opt/my env/bin/activate"
environment: {NCCL_SOCKET_IFNAME: ib0, NOTE: "it's $HOME"}
slurm: {partition: gpu, gpus_per_process: 1, gpu_type: h100, cpus_per_process: 8, options: [--comment=a b]}
k8s: {image: "registry.example:5000/recipe:1", claim: data, namespace: team}
sky: {accelerators: H100, volume: runs, use_spot: true, install: pip install recipe-core}
"""


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command line with the toy as the only plugin, in an empty folder; return exit code, stdout and stderr."""
    packages = tmp_path / "packages"
    install_plugin(packages, "toy", "recipe_core.testing.toy")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.setenv("RECIPE_PLUGINS", "toy")
    monkeypatch.setenv("RECIPE_SITE", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text(SITE)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def type_it(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    return type_it


@pytest.fixture
def program() -> Callable[[Path, str, str], None]:
    """Write an executable shell script: folder, name, text."""

    def write(folder: Path, name: str, code: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/bash\n{code}\n")
        (folder / name).chmod(stat.S_IRWXU)

    return write


@pytest.fixture
def slurm(tmp_path: Path, program: Callable[[Path, str, str], None], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Imitations of Slurm's commands, first on PATH; each appends its line to ``lines``, squeue prints ``state``."""
    folder = tmp_path / "slurm"
    for name, answer in (
        ("sbatch", "echo $((40 + $(wc -l < {0}/lines)))"),
        ("squeue", "cat {0}/state"),
        ("scancel", ":"),
    ):
        program(folder, name, f'echo {name} "$@" >> {folder}/lines\n{answer.format(folder)}')
    (folder / "lines").touch()
    (folder / "state").write_text("PENDING\n")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder
