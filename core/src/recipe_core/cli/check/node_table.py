"""Comparison of the nodes of a job: a table of their reports, and problems that keep a run from working."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.engine.agreement import clock_remarks
from recipe_core.launch.identity import differences
from recipe_core.train.start.check.machine import scaled

_SECTIONS = ("settings", "versions", "code", "data", "environment")
"""Facts of :func:`recipe_core.launch.identity.identity` that are compared; each node is one process here."""
_SLOW = 0.5
"""A link with less than this fraction of the median bandwidth is reported."""
_MAX_LISTED = 10
"""Differences that are listed; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Requirements of a run for each node, in bytes and processes; 0: not known."""

    processes: int = 0
    device_memory: int = 0
    node_memory: int = 0
    disk: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """Report of one node. Sizes are bytes; 0: not known."""

    problems: list[str] = field(default_factory=list)
    """Problems that the node found by itself."""
    identity: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """See :func:`recipe_core.launch.identity.identity`."""
    devices: Mapping[str, Any] = field(default_factory=dict)
    """See :func:`recipe_core.engine.nodes.devices.look`."""
    memory: int = 0
    """Free main memory."""
    disk: int = 0
    """Free space on the disk of the run folder."""
    sees_run_folder: bool | None = None
    """It sees a file of rank 0 in the run folder; None: rank 0 could not write."""
    clock: float = 0.0
    """Seconds since the epoch, read at the same moment on all nodes."""
    link: Mapping[str, Any] = field(default_factory=dict)
    """To the next node; see :class:`recipe_core.engine.nodes.links.NodeLink`."""


def table(hosts: Sequence[str], reports: Sequence[NodeReport | None]) -> str:
    """Format a line for each node."""
    head = ("node", "devices", "free memory", "free disk", "data", "link to the next node", "clock")
    rows = [head, *(_row(rank, hosts, reports) for rank in range(len(hosts)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(rank: int, hosts: Sequence[str], reports: Sequence[NodeReport | None]) -> tuple[str, ...]:
    report, first = reports[rank], reports[0]
    if report is None:
        return (hosts[rank], "no answer", "", "", "", "", "")
    free = [scaled(report.memory, "B")] if report.memory else []
    if report.devices.get("free"):
        free.append(f"{scaled(report.devices['free'], 'B')} of a device")
    offset = report.clock - first.clock if first is not None else 0.0
    return (
        hosts[rank],
        f"{report.devices['count']} {report.devices['name']}" if report.devices else "not known",
        ", ".join(free) or "not known",
        scaled(report.disk, "B") if report.disk else "not known",
        _data(report, first),
        _link(rank, hosts, report.link),
        f"{offset if abs(offset) >= 0.01 else 0.0:+.2f} s",
    )


def _data(report: NodeReport, first: NodeReport | None) -> str:
    """The data files of the settings, if the node could resolve them."""
    if not report.identity:
        return "not known"
    files = report.identity["data"]
    unlike = ", differ" if first is not None and first.identity and files != first.identity["data"] else ""
    return (f"{len(files)} file{'s' * (len(files) > 1)}" if files else "no files") + unlike


def _link(rank: int, hosts: Sequence[str], link: Mapping[str, Any]) -> str:
    if not link:
        return ""
    to = hosts[(rank + 1) % len(hosts)]
    if link["problem"]:
        return f"{to}: no answer"
    if not link["bandwidth"]:  # with two nodes, the first measures the only link
        return ""
    return f"{to}: {scaled(link['bandwidth'], 'B/s')}, {link['latency'] * 1e6:.0f} us"


def problems(
    hosts: Sequence[str], reports: Sequence[NodeReport | None], requirements: Requirements, out: Path
) -> list[str]:
    """Return all problems that keep the run from working on these nodes, each with its nodes."""
    all_problems = [
        f"{host}: gave no answer; its own message may be in the log"
        for host, report in zip(hosts, reports, strict=True)
        if report is None
    ]
    present = [(host, report) for host, report in zip(hosts, reports, strict=True) if report is not None]
    all_problems += _own_problems(present)
    names = [host for host, _ in present]
    for section in _SECTIONS:
        facts = [report.identity.get(section, {}) for _, report in present if report.identity]
        if len(facts) == len(present):
            lines = differences(facts, names)
            all_problems += lines[:_MAX_LISTED]
            if len(lines) > _MAX_LISTED:
                all_problems.append(f"and {len(lines) - _MAX_LISTED:,} more differences of {section}")
    if blind := [host for host, report in present if report.sees_run_folder is False]:
        all_problems.append(
            f"{', '.join(blind)}: what {hosts[0]} writes into {out} is not to be seen there; give an --out on a file "
            "system that all nodes share"
        )
    all_problems += [line for host, report in present for line in _lacking(host, report, requirements)]
    for host, report in present:
        if report.link.get("problem"):
            to = hosts[(hosts.index(host) + 1) % len(hosts)]
            all_problems.append(f"link from {host} to {to}: {report.link['problem']}")
    return all_problems


def _own_problems(present: Sequence[tuple[str, NodeReport]]) -> Iterator[str]:
    """Problems that nodes found by themselves; one that all have is listed once, without hosts."""
    for line in dict.fromkeys(line for _, report in present for line in report.problems):
        hosts = [host for host, report in present if line in report.problems]
        yield line if len(hosts) == len(present) else f"{', '.join(hosts)}: {line}"


def _lacking(host: str, report: NodeReport, requirements: Requirements) -> Iterator[str]:
    kind, count = report.devices.get("kind", "cpu"), int(report.devices.get("count", 0))
    if kind != "cpu" and count < requirements.processes:
        devices = f"{count} ({report.devices['name']})"
        yield f"{host}: {requirements.processes} processes need as many devices, and it has {devices}"
    free = int(report.devices.get("free", 0))
    if 0 < free < requirements.device_memory:
        yield (
            f"{host}: a process needs {scaled(requirements.device_memory, 'B')} of its device, and {scaled(free, 'B')} "
            "are free on one; another program may use it"
        )
    if 0 < report.memory < requirements.node_memory:
        yield (
            f"{host}: its processes need {scaled(requirements.node_memory, 'B')} of main memory, and "
            f"{scaled(report.memory, 'B')} are free"
        )
    if 0 < report.disk < requirements.disk:
        needed, free_disk = scaled(requirements.disk, "B"), scaled(report.disk, "B")
        yield f"{host}: checkpoints need {needed}, and {free_disk} are free for them"


def warnings(hosts: Sequence[str], reports: Sequence[NodeReport | None]) -> list[str]:
    """Return warnings about what may slow the run down."""
    present = [(host, report) for host, report in zip(hosts, reports, strict=True) if report is not None]
    messages = []
    if kinds := _differing_devices(present):
        messages.append(f"the nodes have different devices: {kinds}; the slowest decides for all")
    messages += clock_remarks([host for host, _ in present], [report.clock for _, report in present])
    speeds = {host: report.link["bandwidth"] for host, report in present if report.link.get("bandwidth")}
    middle = statistics.median(speeds.values()) if speeds else 0.0
    for host, speed in speeds.items():
        if speed < _SLOW * middle:
            to = hosts[(hosts.index(host) + 1) % len(hosts)]
            messages.append(
                f"link from {host} to {to}: {scaled(speed, 'B/s')}, and the median is {scaled(middle, 'B/s')}"
            )
    return messages


def _differing_devices(present: Sequence[tuple[str, NodeReport]]) -> str:
    by_devices: dict[str, list[str]] = {}
    for host, report in present:
        if report.devices:
            by_devices.setdefault(f"{report.devices['count']} {report.devices['name']}", []).append(host)
    return (
        "; ".join(f"{text} on {', '.join(names)}" for text, names in by_devices.items()) if len(by_devices) > 1 else ""
    )
