"""`recipe check --on-nodes` on two hosts: a table of what both see, and what keeps a run from working there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_hosts import Hosts, two_hosts, unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(unavailable() is not None, reason=unavailable() or ""),
]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with two_hosts() as both:
        yield both


def check(
    hosts: Hosts, folder: Path, *words: str, second: tuple[str, ...] = (), **environment: str
) -> tuple[list[int], list[str]]:
    """Exit codes and outputs on both; the second host has further words and variables."""
    line = [sys.executable, "-m", "recipe_core.cli", "check", *words, "--on-nodes", "--processes-per-node", "2"]
    processes = [hosts.rank(0, line, folder), hosts.rank(1, [*line, *second], folder, **environment)]
    codes = [process.wait(200) for process in processes]
    return codes, [(folder / f"rank-{number}.txt").read_text() for number in range(2)]


def test_two_hosts_that_are_alike(hosts: Hosts, tmp_path: Path) -> None:
    out = tmp_path / "shared" / "run"
    codes, (first, second) = check(hosts, tmp_path, "megatron_gpt:tiny", "--out", str(out))
    assert (codes, second) == ([0, 0], "")
    rows = first.splitlines()
    assert re.fullmatch(r"node +devices +free memory +free disk +data +link to the next node +clock", rows[0])
    size = r"[\d.]+ .B"
    assert re.fullmatch(rf"first +\d+ cores +{size} +{size} +no files +second: {size}/s, \d+ us +\+0\.00 s", rows[1])
    assert re.fullmatch(rf"second +\d+ cores +{size} +{size} +no files +[+-]\d\.\d\d s", rows[2])
    assert rows[3:] == ["2 nodes: no problem found"]
    assert not out.parent.exists()  # nothing of what was tried there is left


def test_two_hosts_that_differ(hosts: Hosts, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run"))
    other = ("train.seed=3", "--out", str(tmp_path / "elsewhere"))
    codes, (first, second) = check(hosts, tmp_path, "megatron_gpt:tiny", *out, second=other, NCCL_ALGO="Ring")
    assert (codes, second) == ([2, 2], "")
    assert first.splitlines()[3:] == [
        "recipe check: 3 problems:",
        "  - train.seed: 1234 on rank 0 (first), 3 on rank 1 (second)",
        "  - variable NCCL_ALGO: not there on rank 0 (first), Ring on rank 1 (second)",
        f"  - second: what first writes into {tmp_path}/run is not to be seen there; give an --out on a file system "
        "that all nodes share",
    ]


def test_what_only_one_host_can_say(hosts: Hosts, tmp_path: Path) -> None:
    codes, (first, second) = check(hosts, tmp_path, "megatron_gpt:tiny", second=("data.files=/nowhere/wiki",))
    assert (codes, second) == ([2, 2], "")
    assert re.search(r"^recipe check: second: .*/nowhere/wiki", first, re.MULTILINE), first
