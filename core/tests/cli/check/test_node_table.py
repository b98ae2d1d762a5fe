"""Comparison of nodes: problems that keep a run from working, and warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.cli.check.node_table import NodeReport, Requirements, problems, table, warnings
from recipe_core.train.start.check.machine import available_memory

HOSTS = ("n1", "n2", "n3")
GB = 10**9
LINK = {"bandwidth": 10e9, "latency": 30e-6, "problem": ""}
REQUIREMENTS = Requirements(processes=8, device_memory=40 * GB, node_memory=100 * GB, disk=50 * GB)
OUT = Path("runs/gpt")


def report(**changes: Any) -> NodeReport:
    """A node with all that a run needs."""
    gpus = {"kind": "cuda", "count": 8, "name": "H100", "free": 79 * GB, "total": 80 * GB}
    identity = {"versions": {"package torch": "2.13.0"}, "data": {"data.files: a.bin": "9 bytes"}}
    fields = {
        "identity": identity, "devices": gpus, "memory": 900 * GB, "disk": 500 * GB, "sees_run_folder": True,
        "clock": 1e9,
        "link": LINK,
    }  # fmt: skip
    return NodeReport(**fields | changes)


def test_equal_nodes() -> None:
    reports = [report(), report(), report(clock=1e9 + 0.5)]
    assert problems(HOSTS, reports, REQUIREMENTS, OUT) == []
    assert warnings(HOSTS, reports) == []
    assert table(HOSTS, reports).splitlines() == [
        "node  devices  free memory                free disk  data    link to the next node  clock",
        "n1    8 H100   900 GB, 79 GB of a device  500 GB     1 file  n2: 10 GB/s, 30 us     +0.00 s",
        "n2    8 H100   900 GB, 79 GB of a device  500 GB     1 file  n3: 10 GB/s, 30 us     +0.00 s",
        "n3    8 H100   900 GB, 79 GB of a device  500 GB     1 file  n1: 10 GB/s, 30 us     +0.50 s",
    ]


def test_what_one_node_lacks() -> None:
    gpus = dict(report().devices)
    reports = [
        report(devices=gpus | {"count": 7}),
        report(memory=90 * GB, disk=3 * GB),
        report(devices=gpus | {"free": 2 * GB}),
    ]
    assert problems(HOSTS, reports, REQUIREMENTS, OUT) == [
        "n1: 8 processes need as many devices, and it has 7 (H100)",
        "n2: its processes need 100 GB of main memory, and 90 GB are free",
        "n2: checkpoints need 50 GB, and 3 GB are free for them",
        "n3: a process needs 40 GB of its device, and 2 GB are free on one; another program may use it",
    ]
    assert warnings(HOSTS, reports) == [
        "the nodes have different devices: 7 H100 on n1; 8 H100 on n2, n3; the slowest decides for all"
    ]


def test_what_differs_and_what_is_not_seen() -> None:
    other = {"versions": {"package torch": "2.9.0"}, "data": {"data.files: a.bin": "8 bytes"}}
    reports = [report(), report(identity=other), report(sees_run_folder=False)]
    assert problems(HOSTS, reports, REQUIREMENTS, OUT) == [
        "package torch: 2.13.0 on ranks 0, 2 (n1, n3), 2.9.0 on rank 1 (n2)",
        "data.files: a.bin: 9 bytes on ranks 0, 2 (n1, n3), 8 bytes on rank 1 (n2)",
        "n3: what n1 writes into runs/gpt is not to be seen there; give an --out on a file system that all nodes share",
    ]
    assert "1 file, differ" in table(HOSTS, reports)


def test_a_problem_of_all_nodes_is_said_once() -> None:
    reports = [
        NodeReport(problems=["train.lr: no"]),
        NodeReport(problems=["train.lr: no", "data: gone"]),
        NodeReport(problems=["train.lr: no"]),
    ]
    assert problems(HOSTS, reports, Requirements(), OUT) == ["train.lr: no", "n2: data: gone"]
    assert table(HOSTS, reports).count("not known") == 12


def test_a_node_without_an_answer_and_a_link_that_is_cut() -> None:
    cut = {"bandwidth": 0.0, "latency": 0.0, "problem": "timed out"}
    reports = [report(link=cut), report(), None]
    assert problems(HOSTS, reports, REQUIREMENTS, OUT) == [
        "n3: gave no answer; its own message may be in the log",
        "link from n1 to n2: timed out",
    ]
    rows = table(HOSTS, reports).splitlines()
    assert "n2: no answer" in rows[1]
    assert rows[3] == "n3    no answer"


def test_a_slow_link_and_a_wrong_clock_are_warnings() -> None:
    reports = [report(), report(link=LINK | {"bandwidth": 1e9}), report(clock=1e9 - 3600)]
    assert problems(HOSTS, reports, REQUIREMENTS, OUT) == []
    assert warnings(HOSTS, reports) == [
        "the clocks of n3 and n1 are 3,600 seconds apart; times in their logs cannot be compared",
        "link from n2 to n3: 1 GB/s, and the median is 10 GB/s",
    ]


def test_many_differences_are_counted() -> None:
    reports = [report(identity={"code": {f"code {n}": text for n in range(15)}}) for text in ("a", "b", "b")]
    found = problems(HOSTS, reports, REQUIREMENTS, OUT)
    assert len(found) == 11
    assert found[-1] == "and 5 more differences of code"


def test_the_memory_that_a_container_may_still_take(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable:    1000 kB\n")
    assert available_memory(tmp_path / "nothing", tmp_path) == 0
    assert available_memory(tmp_path / "meminfo", tmp_path) == 1_024_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 100000\nfile 600000\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 1_024_000
    (tmp_path / "memory.max").write_text("800000\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 700_000  # what files fill is given up
