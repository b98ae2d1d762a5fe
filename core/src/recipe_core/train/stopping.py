"""When all ranks stop because one of them got a signal, or cannot save: after a step, or in a long one after a micro
batch.

Ranks agree on the host, over gloo, so that no device is waited for: once after each step, and in steps of more than
:data:`SECONDS` about once in so many seconds (0.1 ms each time for two processes of one machine).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from recipe_core.engine.protocol import Engine
from recipe_core.launch.stop import StopFlag

SECONDS = 1.0
"""Between two questions in a step."""


@dataclass
class Stopping:
    """Asks all ranks whether to stop.

    Args:
        engine: the ranks.
        flag: the signals of this one.
        module: the model; its buffers (running statistics, say) change in a step before its weights do.
        lag: micro batches between a question and what it leads to: ranks of a pipeline would wait for each other.
        failed: True when a save of this rank in the background has failed; what follows it could not be saved either.
    """

    engine: Engine
    flag: StopFlag
    module: nn.Module
    lag: int
    failed: Callable[[], bool] = bool
    _seconds: float = 0.0
    """Of the last step on this rank."""
    _longest: float = 0.0
    """Of the last step on any rank: the same on all."""
    _every: int = 0
    """Micro batches between two questions; 0: none is asked."""
    _last: int = 0
    _given_up: bool = False
    _answers: dict[int, Callable[[], list[int]]] = field(default_factory=dict)
    _buffers: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Those of the model, and what they held when the step began."""

    def now(self) -> bool:
        """True if any rank got a signal, or failed to save; a collective."""
        signalled, milliseconds = self.engine.largest(self.signalled, int(1000 * self._seconds))()
        self._longest = milliseconds / 1000
        return bool(signalled)

    @property
    def signalled(self) -> int:
        """1 if this rank got a signal, or failed to save."""
        return int(self.flag.signal is not None or self.failed())

    @property
    def asks(self) -> bool:
        """True if the step under way may be given up."""
        return self._every > 0

    def begin_step(self, micro_batches: int) -> None:
        """Begin a step of so many micro batches on each rank."""
        long = self._longest > SECONDS and not self.engine.traced  # whose step is one graph
        self._every = math.ceil(SECONDS * micro_batches / self._longest) if long else 0
        self._last, self._given_up = micro_batches - 1, False
        self._answers.clear()
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()] if long else []

    def given_up(self, number: int) -> bool:
        """True if micro batch ``number`` of the step, and so all after it, are not to be computed; a collective."""
        if self._every and not self._given_up:
            if number and number % self._every == 0 and number + self.lag <= self._last:
                self._answers[number + self.lag] = self.engine.largest(self.signalled)
            if number in self._answers:
                self._given_up = bool(self._answers.pop(number)()[0])
        return self._given_up

    @torch.no_grad()
    def restore(self) -> None:
        """Give the buffers what they held before the step that was given up."""
        for buffer, value in self._buffers:
            buffer.copy_(value)

    def end_step(self, seconds: float) -> None:
        """End a step that took so many seconds."""
        self._seconds, self._buffers = seconds, []
