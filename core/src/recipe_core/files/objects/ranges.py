"""Byte ranges: joined where they are near, cut where they are large."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

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


def joined_within(ranges: Iterable[Range], share: float) -> list[Range]:
    """Join ranges over their smallest gaps, so that at most ``share`` of their bytes is read in vain.

    Fewer requests cost less than some more bytes.
    """
    exact = coalesced(ranges)
    left = share * sum(stop - start for start, stop in exact)
    most = -1
    for gap in sorted(second[0] - first[1] for first, second in pairwise(exact)):
        if gap > left:
            break
        left, most = left - gap, gap
    # Gaps that are as long as the longest joined one may be more than those that were counted.
    return coalesced(exact, most - 1 if left < most else most) if most > 0 else exact


def pieces(start: int, stop: int, most: int = MOST) -> list[Range]:
    """Cut a range into ranges of ``most`` bytes, the last one shorter."""
    return [(first, min(stop, first + most)) for first in range(start, stop, most)]
