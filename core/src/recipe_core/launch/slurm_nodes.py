"""Parsers of Slurm's compressed node lists and task counts. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_NAME = re.compile(r"(?:[^,\[\]]|\[[\d,-]+\])+")
_PART = re.compile(r"\[([\d,-]+)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def hosts(nodelist: str) -> Iterator[str]:
    """Yield the hosts of a node list in order: ``n02``, ``n03``, ``n07`` and ``m`` for ``n[02-03,07],m``."""
    for name in _NAME.findall(nodelist):
        yield from _expanded(name)


def _expanded(name: str) -> Iterator[str]:
    brackets = _PART.search(name)
    if brackets is None:
        yield name
        return
    for text in brackets[1].split(","):
        if limits := _RANGE.fullmatch(text):
            first, last = limits[1], limits[2] or limits[1]
            for number in range(int(first), int(last) + 1):
                yield from _expanded(f"{name[: brackets.start()]}{number:0{len(first)}}{name[brackets.end() :]}")


def tasks_of_nodes(text: str) -> list[int]:
    """Return the tasks on each node: ``[4, 4, 3]`` for Slurm's ``4(x2),3``; empty if the text is invalid."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def host_of(rank: int, environment: Mapping[str, str]) -> str:
    """Return the host on which Slurm starts a rank of this step; empty if unknown or not in order."""
    by_block = environment.get("SLURM_DISTRIBUTION", "block").partition(":")[0] in ("block", "")
    counts = tasks_of_nodes(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if "SLURM_STEP_ID" not in environment or not (by_block or set(counts) == {1}):
        return ""
    for host, count in zip(hosts(environment.get("SLURM_STEP_NODELIST", "")), counts, strict=False):
        if rank < count:
            return host
        rank -= count
    return ""
