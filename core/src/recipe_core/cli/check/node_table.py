"""The nodes of a job beside each other: what each sees, as a table, and what of it keeps a run from working."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.cli.check.machine import scaled
from recipe_core.engine.agreement import clock_remarks
from recipe_core.launch.identity import differences

_SECTIONS = ("settings", "versions", "code", "data", "environment")
"""Facts of :func:`recipe_core.launch.identity.identity` that are compared; each node is one process here."""
_SLOW = 0.5
"""A link with less than this part of the median bandwidth is named."""
_SHOWN = 10
"""So many differences are listed; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a run needs of each node, in bytes and processes; 0: not known."""

    processes: int = 0
    device_memory: int = 0
    node_memory: int = 0
    disk: int = 0


@dataclass(frozen=True, kw_only=True)
class View:
    """What one node sees. Sizes are bytes; 0: not known."""

    problems: list[str] = field(default_factory=list)
    """What keeps the run from starting there, by itself."""
    identity: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """See :func:`recipe_core.launch.identity.identity`."""
    devices: Mapping[str, Any] = field(default_factory=dict)
    """See :func:`recipe_core.engine.nodes.devices.look`."""
    memory: int = 0
    """Main memory that is free."""
    disk: int = 0
    """Free where the run folder is."""
    sees: bool | None = None
    """It sees what rank 0 wrote into the run folder; None: rank 0 could not write."""
    clock: float = 0.0
    """Seconds since the epoch at one moment of all nodes."""
    link: Mapping[str, Any] = field(default_factory=dict)
    """To the next node; see :class:`recipe_core.engine.nodes.links.Link`."""


def table(hosts: Sequence[str], views: Sequence[View | None]) -> str:
    """A line for each node."""
    head = ("node", "devices", "free memory", "free disk", "data", "link to the next node", "clock")
    rows = [head, *(_row(rank, hosts, views) for rank in range(len(hosts)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(rank: int, hosts: Sequence[str], views: Sequence[View | None]) -> tuple[str, ...]:
    view, first = views[rank], views[0]
    if view is None:
        return (hosts[rank], "no answer", "", "", "", "", "")
    free = [scaled(view.memory, "B")] if view.memory else []
    if view.devices.get("free"):
        free.append(f"{scaled(view.devices['free'], 'B')} of a device")
    apart = view.clock - first.clock if first is not None else 0.0
    return (
        hosts[rank],
        f"{view.devices['count']} {view.devices['name']}" if view.devices else "not known",
        ", ".join(free) or "not known",
        scaled(view.disk, "B") if view.disk else "not known",
        _data(view, first),
        _link(rank, hosts, view.link),
        f"{apart if abs(apart) >= 0.01 else 0.0:+.2f} s",
    )


def _data(view: View, first: View | None) -> str:
    """The files of the settings, as far as these could be read there."""
    if not view.identity:
        return "not known"
    files = view.identity["data"]
    unlike = ", differ" if first is not None and first.identity and files != first.identity["data"] else ""
    return (f"{len(files)} file{'s' * (len(files) > 1)}" if files else "no files") + unlike


def _link(rank: int, hosts: Sequence[str], link: Mapping[str, Any]) -> str:
    if not link:
        return ""
    to = hosts[(rank + 1) % len(hosts)]
    if link["problem"]:
        return f"{to}: no answer"
    if not link["bandwidth"]:  # of two nodes, the second has none of its own
        return ""
    return f"{to}: {scaled(link['bandwidth'], 'B/s')}, {link['latency'] * 1e6:.0f} us"


def problems(hosts: Sequence[str], views: Sequence[View | None], need: Need, out: Path) -> list[str]:
    """All that keeps the run from working on these nodes, each with the nodes that it is about."""
    found = [
        f"{host}: gave no answer; its own message may be in the log"
        for host, view in zip(hosts, views, strict=True)
        if view is None
    ]
    there = [(host, view) for host, view in zip(hosts, views, strict=True) if view is not None]
    found += _of_each(there)
    names = [host for host, _ in there]
    for section in _SECTIONS:
        facts = [view.identity.get(section, {}) for _, view in there if view.identity]
        if len(facts) == len(there):
            lines = differences(facts, names)
            found += lines[:_SHOWN]
            if len(lines) > _SHOWN:
                found.append(f"and {len(lines) - _SHOWN:,} more differences of {section}")
    if blind := [host for host, view in there if view.sees is False]:
        found.append(
            f"{', '.join(blind)}: what {hosts[0]} writes into {out} is not to be seen there; give an --out on a file "
            "system that all nodes share"
        )
    found += [line for host, view in there for line in _lacking(host, view, need)]
    for host, view in there:
        if view.link.get("problem"):
            to = hosts[(hosts.index(host) + 1) % len(hosts)]
            found.append(f"link from {host} to {to}: {view.link['problem']}")
    return found


def _of_each(there: Sequence[tuple[str, View]]) -> Iterator[str]:
    """Problems that nodes found by themselves; what all have in common is said once."""
    told = dict.fromkeys(line for _, view in there for line in view.problems)
    for line in told:
        having = [host for host, view in there if line in view.problems]
        yield line if len(having) == len(there) else f"{', '.join(having)}: {line}"


def _lacking(host: str, view: View, need: Need) -> Iterator[str]:
    kind, count = view.devices.get("kind", "cpu"), int(view.devices.get("count", 0))
    if kind != "cpu" and count < need.processes:
        yield f"{host}: {need.processes} processes need as many devices, and it has {count} ({view.devices['name']})"
    free = int(view.devices.get("free", 0))
    if 0 < free < need.device_memory:
        yield (
            f"{host}: a process needs {scaled(need.device_memory, 'B')} of its device, and {scaled(free, 'B')} are "
            "free on one; another program may use it"
        )
    if 0 < view.memory < need.node_memory:
        yield (
            f"{host}: its processes need {scaled(need.node_memory, 'B')} of main memory, and "
            f"{scaled(view.memory, 'B')} are free"
        )
    if 0 < view.disk < need.disk:
        yield f"{host}: checkpoints need {scaled(need.disk, 'B')}, and {scaled(view.disk, 'B')} are free for them"


def warnings(hosts: Sequence[str], views: Sequence[View | None]) -> list[str]:
    """What does not keep the run from working, and may cost it time."""
    there = [(host, view) for host, view in zip(hosts, views, strict=True) if view is not None]
    found = []
    if kinds := _unlike(there):
        found.append(f"the nodes have different devices: {kinds}; the slowest decides for all")
    found += clock_remarks([host for host, _ in there], [view.clock for _, view in there])
    speeds = {host: view.link["bandwidth"] for host, view in there if view.link.get("bandwidth")}
    middle = statistics.median(speeds.values()) if speeds else 0.0
    for host, speed in speeds.items():
        if speed < _SLOW * middle:
            to = hosts[(hosts.index(host) + 1) % len(hosts)]
            found.append(f"link from {host} to {to}: {scaled(speed, 'B/s')}, and the median is {scaled(middle, 'B/s')}")
    return found


def _unlike(there: Sequence[tuple[str, View]]) -> str:
    """The devices of the nodes in words, where they are not all the same."""
    by_devices: dict[str, list[str]] = {}
    for host, view in there:
        if view.devices:
            by_devices.setdefault(f"{view.devices['count']} {view.devices['name']}", []).append(host)
    return (
        "; ".join(f"{text} on {', '.join(names)}" for text, names in by_devices.items()) if len(by_devices) > 1 else ""
    )
