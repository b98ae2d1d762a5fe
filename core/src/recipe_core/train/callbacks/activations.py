"""Size of the activations between submodules, in the steps that are logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recipe_core.errors import ConfigError
from recipe_core.layouts.patterns import matching
from recipe_core.train.callbacks.callback import Callback, CallbackRun, local
from recipe_core.train.callbacks.settings import Activations, measured


class ActivationStatistics(Callback):
    """Adds ``activation_rms.NAME`` and ``activation_max.NAME`` to each logged row: over all samples of the step.

    Raises:
        ConfigError: the model is compiled, or no submodule has such a name.
    """

    def __init__(self, config: Activations, run: CallbackRun) -> None:
        self.run, self._measures = run, False
        self._found: dict[str, Tensor] = {}
        """By name: number of values, sum of squares, largest magnitude, on the device."""
        if run.model.compiled:
            raise ConfigError("callback.activations: the model is compiled; set train.compile=false")
        pattern = config.modules or run.run.structure.blocks
        modules = matching(run.model.module, pattern)
        if not any(run.engine.gather(bool(modules))):
            raise ConfigError(f"callback.activations.modules: {pattern!r} matches no submodule of the model")
        for name, module in modules.items():
            module.register_forward_hook(self._hook(name))

    def before_step(self, step: int) -> None:
        """Measure if the step is logged."""
        self._measures, self._found = measured(step, self.run.run.train), {}

    def after_step(self, step: int) -> None:
        """Measure no evaluation."""
        self._measures = False

    def metrics(self, step: int) -> Mapping[str, float]:
        """The statistics over all ranks; empty where the step is logged for another reason."""
        here = dict(zip(self._found, torch.stack([*self._found.values()]).tolist(), strict=True)) if self._found else {}
        everywhere = self.run.engine.gather(here)
        columns: dict[str, float] = {}
        for name in dict.fromkeys(name for found in everywhere for name in found):
            counts, squares, largest = zip(*(found[name] for found in everywhere if name in found), strict=True)
            columns[f"activation_rms.{name}"] = (sum(squares) / sum(counts)) ** 0.5
            columns[f"activation_max.{name}"] = max(largest)
        return columns

    def _hook(self, name: str) -> Any:
        def measure(module: nn.Module, inputs: object, output: Any) -> None:
            if self._measures and torch.is_grad_enabled():  # a pipeline runs a forward without, to learn a shape
                self._add(name, output)

        return measure

    @torch.no_grad()
    def _add(self, name: str, output: Any) -> None:
        values = local(output[0] if isinstance(output, tuple) else output).float()
        count = torch.full((), float(values.numel()), device=values.device)
        now = torch.stack([count, values.square().sum(), values.abs().max()])
        before = self._found.get(name)
        if before is not None:
            now = torch.stack([before[0] + now[0], before[1] + now[1], torch.maximum(before[2], now[2])])
        self._found[name] = now
