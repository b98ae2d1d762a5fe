"""A table of the observed results of each fault under each way to start a run, printed after the tests."""

from __future__ import annotations

from dataclasses import astuple, dataclass

ROWS: list[Row] = []
_HEAD = ("fault", "start", "exit codes", "recipe status", "started again", "free after", "curve")


@dataclass(frozen=True)
class Row:
    """One fault under one start."""

    fault: str
    start: str
    codes: str
    """Exit codes of the processes that the user or the batch system started."""
    status: str
    """The output of `recipe status` after it, in one line."""
    again: str
    """The person or program that started the run again."""
    seconds: float | None
    """Time from the fault until no process of the run was left on the machines."""
    curve: str
    """The losses of the finished run compared with those of a run without a fault."""


def table() -> str:
    """Return all rows in Markdown."""
    lines = [_HEAD, ("---",) * len(_HEAD)]
    for row in ROWS:
        fault, start, codes, status, again, seconds, curve = astuple(row)
        lines.append(
            (
                fault,
                start,
                codes,
                status.replace("|", "/"),
                again,
                "-" if seconds is None else f"{seconds:.1f} s",
                curve,
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
