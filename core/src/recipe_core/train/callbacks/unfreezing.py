"""Gradual unfreezing: the last layers first, then one block more at a time (Howard and Ruder 2018, section 3.3)."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from recipe_core.train.callbacks.callback import Callback, CallbackRun
from recipe_core.train.callbacks.settings import Unfreezing


class GradualUnfreezing(Callback):
    """Drops the gradients of what is not trained yet: a function of the step, without a state."""

    def __init__(self, config: Unfreezing, run: CallbackRun) -> None:
        self.config = config
        self._begins = [(parameter, begin) for parameter, begin in zip(*_begins(config, run), strict=True) if begin]

    def before_optimizer(self, step: int) -> None:
        """Drop the gradients of frozen parameters."""
        for parameter, begin in self._begins:
            if step <= begin:
                parameter.grad = None


def _begins(config: Unfreezing, run: CallbackRun) -> tuple[list[nn.Parameter], list[int]]:
    """The parameters of this rank, and the steps for which each stays frozen."""
    named = run.model.named_parameters()
    pattern = run.run.structure.blocks
    depth = pattern.count(".") + 1
    # All ranks must know all blocks: in a pipeline, each holds some of them.
    names = run.engine.gather([name for name, _ in named])
    units = {unit: None for some in names for name in some if (unit := _unit(name, pattern, depth))}
    ordered = sorted(units, key=lambda unit: [int(part) if part.isdecimal() else -1 for part in unit.split(".")])
    rank = {unit: number for number, unit in enumerate(reversed(ordered))}
    steps = []
    for name, _ in named:
        unit = _unit(name, pattern, depth)
        if any(fnmatchcase(name, one) for one in config.trained):
            steps.append(0)
        elif unit is not None:
            steps.append((rank[unit] + bool(config.trained)) * config.every)
        else:
            steps.append((len(rank) + bool(config.trained)) * config.every)
    return [parameter for _, parameter in named], steps


def _unit(name: str, pattern: str, depth: int) -> str | None:
    unit = ".".join(name.split(".")[:depth])
    return unit if pattern and fnmatchcase(unit, pattern) else None
