"""Faults of the test server, drawn from a seed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Fault = Literal["none", "refuse", "fail", "cut", "delay"]


@dataclass
class Faults:
    """Probabilities of the faults of one request; at most ``in_a_row`` requests for the same thing fail in a row.

    ``refuse`` answers 503, ``fail`` 500, ``cut`` ends a body in its middle, and ``delay`` waits ``seconds`` first.
    """

    seed: int = 0
    refuse: float = 0.0
    fail: float = 0.0
    cut: float = 0.0
    delay: float = 0.0
    seconds: float = 0.05
    in_a_row: int = 3
    drawn: Counter[str] = field(default_factory=Counter)
    """Number of requests by the fault that they had."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._failed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def draw(self, request: str) -> Fault:
        """Return the fault of the next request; ``request`` is its line, which a repetition shares."""
        with self._lock:
            fault = self._drawn()
            if fault in ("refuse", "fail", "cut"):
                self._failed[request] += 1
                if self._failed[request] > self.in_a_row:
                    fault = "none"
            if fault in ("none", "delay"):
                del self._failed[request]
            self.drawn[fault] += 1
        return fault

    def _drawn(self) -> Fault:
        number = self._random.random()
        kinds: tuple[tuple[Fault, float], ...] = (
            ("refuse", self.refuse), ("fail", self.fail), ("cut", self.cut), ("delay", self.delay),
        )  # fmt: skip
        for name, share in kinds:
            if number < share:
                return name
            number -= share
        return "none"
