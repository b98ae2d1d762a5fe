"""A line of ``recipe doctor`` about one thing that it examined."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "note", "warning", "broken"]
"""``note``: worth knowing, nothing to do; ``warning``: some runs will be slow or fail; ``broken``: it does not work."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    """The heading that it stands under."""
    state: State
    text: str
    remedy: str = ""
    """The way out, where there is something to mend."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
