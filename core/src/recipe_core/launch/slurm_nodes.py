"""Slurm's short forms for the nodes of a step and the tasks on each. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_NAME = re.compile(r"(?:[^,\[\]]|\[[\d,-]+\])+")
_PART = re.compile(r"\[([\d,-]+)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def hosts(nodelist: str) -> Iterator[str]:
    """The hosts of a node list in its order: ``n02``, ``n03``, ``n07`` and ``m`` of ``n[02-03,07],m``."""
    for name in _NAME.findall(nodelist):
        yield from _expanded(name)


def _expanded(name: str) -> Iterator[str]:
    found = _PART.search(name)
    if found is None:
        yield name
        return
    for text in found[1].split(","):
        if limits := _RANGE.fullmatch(text):
            first, last = limits[1], limits[2] or limits[1]
            for number in range(int(first), int(last) + 1):
                yield from _expanded(f"{name[: found.start()]}{number:0{len(first)}}{name[found.end() :]}")


def tasks_of_nodes(text: str) -> list[int]:
    """The tasks on each node, of Slurm's ``4(x2),3``: four on each of two nodes, three on a third; empty if unknown."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def host_of(rank: int, environment: Mapping[str, str]) -> str:
    """The host on which Slurm starts a rank of this step; empty where Slurm does not say, or not in this order."""
    by_block = environment.get("SLURM_DISTRIBUTION", "block").partition(":")[0] in ("block", "")
    counts = tasks_of_nodes(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if "SLURM_STEP_ID" not in environment or not (by_block or set(counts) == {1}):
        return ""
    for host, count in zip(hosts(environment.get("SLURM_STEP_NODELIST", "")), counts, strict=False):
        if rank < count:
            return host
        rank -= count
    return ""
