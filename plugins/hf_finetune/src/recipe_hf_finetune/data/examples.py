"""The samples of one split, as texts and labels. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Examples:
    """The samples of one split."""

    texts: tuple[list[str], ...]
    """A list for each column of text."""
    labels: list[int] | list[float] | None
    """Numbers of the labels; for a regression, the values; None if the split has none."""

    def __len__(self) -> int:
        return len(self.texts[0])
