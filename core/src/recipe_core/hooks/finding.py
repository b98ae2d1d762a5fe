"""A finding of ``recipe doctor``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "note", "warning", "broken"]
"""``note``: worth knowing, nothing to do; ``warning``: some runs will be slow or fail; ``broken``: it does not work."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    """The heading of its group."""
    state: State
    text: str
    remedy: str = ""
    """How to fix it, if necessary."""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        return asdict(self)
