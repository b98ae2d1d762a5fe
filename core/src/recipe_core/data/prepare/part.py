"""One part of a preparation that is divided."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recipe_core.errors import ConfigError

_MOST = 1_000_000


@dataclass(frozen=True)
class PreparePart:
    """Part ``number`` of ``count``, as in ``part=3/7`` of ``recipe prepare``."""

    number: int
    """From 1 to ``count``."""
    count: int

    @classmethod
    def parse(cls, text: str) -> PreparePart:
        """Read ``K/N``.

        Raises:
            ConfigError: it is no such text, or K is not from 1 to N.
        """
        numbers = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text, re.ASCII)
        number, count = map(int, numbers.groups()) if numbers else (0, 0)
        if not 1 <= number <= count <= _MOST:
            raise ConfigError(f"part: expected K/N, as in 3/7, with K from 1 to N and N up to {_MOST:,}, got {text!r}")
        return cls(number, count)

    def range_of(self, total: int) -> tuple[int, int]:
        """Return the first and the last, excluded, of ``total`` bytes or items that are this part's."""
        return total * (self.number - 1) // self.count, total * self.number // self.count

    def owns(self, at: int, total: int) -> bool:
        """True if what begins at ``at`` of ``total`` is this part's; what begins at the end is the last one's."""
        low, high = self.range_of(total)
        return low <= at < high or (at == total and self.number == self.count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"
