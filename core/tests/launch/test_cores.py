"""The cores that a container may use, by the files of version 1 and 2 of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.launch import cores
from recipe_core.launch.cores import cpu_quota


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/a/b", {"a/b/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000", "cpu.max": "400000 100000"}, 1.5),
        ("0::/", {"cpu.max": "120000 50000"}, 2.4),
        ("0::/not/in/the/container", {"cpu.max": "100000 100000"}, 1.0),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "nonsense"}, None),
        ("1:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "75000", "cpu/a/cpu.cfs_period_us": "50000"}, 1.5),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 0.5),
        ("1:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("2:cpuset:/\n1:cpu:/\n0::/", {"cpu/cpu.cfs_quota_us": "-1", "unified/cpu.max": "max 100000"}, None),
        ("3:memory:/a", {"memory/a/cpu.cfs_quota_us": "1"}, None),
    ],
)
def test_the_smallest_quota_of_the_groups_counts(
    tmp_path: Path, own: str, files: dict[str, str], quota: float | None
) -> None:
    write(tmp_path, {"own": own, **{f"groups/{name}": text for name, text in files.items()}})
    assert cpu_quota(tmp_path / "groups", tmp_path / "own") == quota


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "own") is None


@pytest.mark.parametrize(
    ("quota", "bound", "usable"), [(None, 4, 4), (0.4, 4, 1), (1.25, 4, 1), (1.75, 4, 2), (3.0, 4, 3), (9.0, 4, 4)]
)
def test_cores_are_those_of_the_binding_or_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, bound: int, usable: int
) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: set(range(bound)), raising=False)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.usable_cores() == usable
