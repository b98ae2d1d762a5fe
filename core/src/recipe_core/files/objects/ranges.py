"""Byte ranges: joined where they are near, cut where they are large."""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]
"""Start and stop, in bytes."""
MOST = 32 << 20
"""Bytes of one request: enough for the full rate, few enough to repeat."""


def coalesced(ranges: Iterable[Range], gap: int = 0) -> list[Range]:
    """Join ranges that overlap or have at most ``gap`` bytes between them; the result rises, without empty ranges."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if joined and start <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined


def pieces(start: int, stop: int, most: int = MOST) -> list[Range]:
    """Cut a range into ranges of ``most`` bytes, the last one shorter."""
    return [(first, min(stop, first + most)) for first in range(start, stop, most)]
