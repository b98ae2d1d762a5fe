"""The end of a run that no longer improves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.errors import ConfigError
from recipe_core.train.callbacks.callback import Callback, CallbackRun
from recipe_core.train.callbacks.settings import EarlyStopping


class EarlyStop(Callback):
    """Counts the evaluations since the best one; its state is the same on all ranks, as the values are."""

    def __init__(self, config: EarlyStopping, run: CallbackRun) -> None:
        self.config, self.run = config, run
        self._of = f"{config.best} {config.metric}"
        self._best: float | None = None
        self._best_step = self._waited = 0

    def on_start(self, step: int) -> None:
        """End at once where the run has ended before."""
        self._decide()

    def after_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Compare with the best value so far.

        Raises:
            ConfigError: there is no such metric.
        """
        config = self.config
        if config.metric not in values:
            raise ConfigError(
                f"callback.early_stopping.metric: the evaluations have no {config.metric!r} "
                f"(there are: {', '.join(values)})"
            )
        value = values[config.metric]
        sign = 1 if config.best == "lowest" else -1
        if self._best is None or sign * (self._best - value) > config.least_change:
            self._best, self._best_step, self._waited = value, step, 0
            return
        self._waited += 1
        self._decide()

    def _decide(self) -> None:
        if self._best is not None and self._waited >= self.config.patience:
            self.run.stop(
                f"{self.config.metric} has not been better than {self._best:.4f} of step {self._best_step:,} in "
                f"{self._waited} evaluations"
            )

    def state(self) -> dict[str, Any]:
        """The best value and how long ago it was."""
        return {"of": self._of, "best": self._best, "best_step": self._best_step, "waited": self._waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue to count, unless the state is that of another metric."""
        if state["of"] != self._of:
            return
        self._best, self._best_step, self._waited = state["best"], state["best_step"], state["waited"]
