"""Agreement of all ranks to stop when one of them got a signal or failed to save.

Ranks vote on the host, over gloo, without synchronising with the device: after each step, and within steps longer than
:data:`SECONDS` about once per that time (a vote takes 0.1 ms for two processes of one machine).
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
"""Between two votes within a step."""


def announcement(name: str, step: int | None = None, *, may_discard: bool = False) -> str:
    """Return the answer to the signal ``name`` for the terminal, if it came during ``step``, which may be discarded."""
    if step is None:
        saved = "after this step"
    elif may_discard:
        saved = f"step {step - 1:,} in about {SECONDS:.0f} s, or step {step:,} if that ends before"
    else:
        saved = f"after step {step:,}"
    again = "; Ctrl-C again stops at once, without saving" if name == "SIGINT" else ""
    return f"{name}: saving {saved}{again}"


@dataclass
class Stopping:
    """Votes of all ranks on stopping.

    Args:
        engine: the ranks.
        flag: signals of this rank.
        module: the model; its buffers (running statistics, for example) change during a step.
        lag: micro batches between a vote and its effect: without it, ranks of a pipeline would wait for each other.
        failed: True if a background save of this rank has failed, so that later saves would fail too.
    """

    engine: Engine
    flag: StopFlag
    module: nn.Module
    lag: int
    failed: Callable[[], bool] = bool
    _seconds: float = 0.0
    """Duration of the last step on this rank."""
    _longest: float = 0.0
    """Duration of the last step on the slowest rank: the same on all."""
    _every: int = 0
    """Micro batches between two votes; 0: no votes within the step."""
    _last: int = 0
    _discarded: bool = False
    _votes: dict[int, Callable[[], list[int]]] = field(default_factory=dict)
    _buffers: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Buffers of the model, with their values at the start of the step."""

    def now(self) -> bool:
        """True if any rank got a signal, or failed to save; a collective."""
        signalled, milliseconds = self.engine.largest(self.signalled, int(1000 * self._seconds))()
        self._longest = milliseconds / 1000
        return bool(signalled)

    @property
    def signalled(self) -> int:
        """1 if this rank got a signal, or failed to save, else 0."""
        return int(self.flag.signal is not None or self.failed())

    @property
    def may_discard(self) -> bool:
        """True if the current step may be discarded."""
        return self._every > 0

    def begin_step(self, micro_batches: int) -> None:
        """Begin a step of ``micro_batches`` on each rank."""
        long = self._longest > SECONDS and not self.engine.traced  # a traced step is one graph
        self._every = math.ceil(SECONDS * micro_batches / self._longest) if long else 0
        self._last, self._discarded = micro_batches - 1, False
        self._votes.clear()
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()] if long else []

    def discards(self, number: int) -> bool:
        """True if micro batch ``number`` and all later ones of the step are to be discarded; a collective."""
        if self._every and not self._discarded:
            if number and number % self._every == 0 and number + self.lag <= self._last:
                self._votes[number + self.lag] = self.engine.largest(self.signalled)
            if number in self._votes:
                self._discarded = bool(self._votes.pop(number)()[0])
        return self._discarded

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the buffers to their values before the discarded step."""
        for buffer, value in self._buffers:
            buffer.copy_(value)

    def end_step(self, seconds: float) -> None:
        """End a step, which took ``seconds``."""
        self._seconds, self._buffers = seconds, []
