"""Slurm's short forms: the same nodes as Slurm's own ``scontrol show hostnames`` gives."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from recipe_core.launch.slurm_nodes import host_of, hosts, tasks_of_nodes

LISTS = {
    "n1": ["n1"],
    "node[02-04,07],other": ["node02", "node03", "node04", "node07", "other"],
    "n[9-11]": ["n9", "n10", "n11"],
    "n[098-101]": ["n098", "n099", "n100", "n101"],
    "rack[1-2]n[3,5]": ["rack1n3", "rack1n5", "rack2n3", "rack2n5"],
    "ip-10-0-0-1,n2.site": ["ip-10-0-0-1", "n2.site"],
}
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}


@pytest.mark.parametrize("nodelist", LISTS)
def test_a_list_of_nodes(nodelist: str) -> None:
    assert list(hosts(nodelist)) == LISTS[nodelist]


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm's commands are not installed")
@pytest.mark.parametrize("nodelist", LISTS)
def test_slurm_reads_it_so_too(nodelist: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    words = ["scontrol", "show", "hostnames", nodelist]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == LISTS[nodelist]


def test_what_cannot_be_read_names_nothing() -> None:
    assert list(hosts("")) == []
    assert tasks_of_nodes("2(x2),1") == [2, 2, 1]
    assert tasks_of_nodes("2,x") == []


def test_the_host_of_a_rank() -> None:
    assert [host_of(rank, STEP) for rank in range(6)] == ["n1", "n1", "n2", "n2", "n3", ""]
    assert host_of(0, {}) == ""
    cyclic = STEP | {"SLURM_DISTRIBUTION": "cyclic"}
    assert host_of(0, cyclic) == ""  # ranks go round the nodes
    assert host_of(2, cyclic | {"SLURM_STEP_TASKS_PER_NODE": "1(x3)"}) == "n3"
