"""The command ``recipe doctor``. No torch here: the libraries are probed in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from recipe_core.cli.options import debug_option, json_option
from recipe_core.errors import ExitCode

if TYPE_CHECKING:
    from recipe_core.cli.doctor import Finding

_COLOURS = {"ok": "green", "note": None, "warning": "yellow", "broken": "red"}


@click.command()
@json_option
@debug_option
def doctor(as_json: bool) -> int:
    """Tell what works on this machine, and what to do if not.

    Python, PyTorch, torch-xla and AWS's packages, devices, drivers, network, disks, limits and environment
    variables. It ends with 1 when something is broken.
    """
    from recipe_core.cli.doctor import examine, is_broken
    from recipe_core.train.start.destination import RUNS

    findings: list[Finding] = []
    for finding in examine(RUNS):  # printed one by one: probing the libraries takes seconds
        if not as_json:
            click.echo("\n".join(_lines(finding, findings[-1].topic if findings else "")))
        findings.append(finding)
    if as_json:
        counts = {state: sum(finding.state == state for finding in findings) for state in _COLOURS}
        click.echo(json.dumps({**counts, "findings": [finding.as_dict() for finding in findings]}, indent=2))
    else:
        click.echo(f"\n{_summary(findings)}")
    return ExitCode.FINDING if is_broken(findings) else ExitCode.FINISHED


def _lines(finding: Finding, topic: str) -> Iterator[str]:
    if finding.topic != topic:
        yield ("\n" if topic else "") + click.style(finding.topic, bold=True)
    yield f"  {click.style(finding.state.ljust(8), fg=_COLOURS[finding.state])} {finding.text}"
    if finding.remedy:
        yield f"  {'':8} -> {finding.remedy}"


def _summary(findings: list[Finding]) -> str:
    broken, warnings = (sum(finding.state == state for finding in findings) for state in ("broken", "warning"))
    if not broken and not warnings:
        return "Nothing is broken."
    return f"{broken or 'nothing'} broken, {warnings} warning{'s' if warnings != 1 else ''}"
