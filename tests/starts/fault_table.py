"""What was seen of each fault under each way to start a run: a table, printed when the tests have ended."""

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
    """Exit codes of what the user, or the batch system, had started."""
    status: str
    """What `recipe status` says then, in one line."""
    again: str
    """Who started the run again."""
    seconds: float | None
    """From the fault until nothing of the run was left on the machines."""
    curve: str
    """The losses after the run has come to its end, beside those of a run without a fault."""


def table() -> str:
    """All rows, in Markdown."""
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
