"""Random numbers of one small thing from its key alone; see ``keyed_random.hpp``."""

from __future__ import annotations

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1


def mixed(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & WORD
    return value ^ value >> 31


def key_of(key: int, number: int) -> int:
    """The key of the thing ``number`` among those of ``key``."""
    return mixed(key + (number + 1) * GOLDEN & WORD)


class KeyedRandom:
    """SplitMix64, started from a key."""

    def __init__(self, key: int) -> None:
        self._state = key

    def next(self) -> int:
        """64 random bits."""
        self._state = self._state + GOLDEN & WORD
        return mixed(self._state)

    def below(self, end: int) -> int:
        """A number from 0 to below ``end``."""
        return (self.next() >> 32) * end >> 32

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return (self.next() >> 11) * 2.0**-53 < probability
