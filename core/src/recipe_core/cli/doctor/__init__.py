"""Checks of installed packages, devices and plugins, with remedies. Imports no torch itself.

``packages.py``, ``plugins.py``, ``machine.py``, ``variables.py``: the topics; each yields findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from recipe_core.cli.doctor.machine import machine_findings
from recipe_core.cli.doctor.packages import package_findings
from recipe_core.cli.doctor.plugins import engine_findings, plugin_findings
from recipe_core.cli.doctor.variables import variable_findings
from recipe_core.hooks.finding import Finding, State
from recipe_core.hooks.registry import load

__all__ = ["Finding", "State", "examine", "is_broken"]


def examine(runs: Path) -> Iterator[Finding]:
    """Yield the findings of all topics as soon as each is known.

    Args:
        runs: the folder of runs, whose disk is checked.
    """
    yield from package_findings()
    yield from machine_findings(runs)
    yield from variable_findings()
    registry = load()
    yield from plugin_findings(registry)
    yield from engine_findings(registry)


def is_broken(findings: Sequence[Finding]) -> bool:
    """True if anything does not work."""
    return any(finding.state == "broken" for finding in findings)
