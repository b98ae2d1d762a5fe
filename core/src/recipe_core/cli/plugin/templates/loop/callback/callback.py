"""The callback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core import Callback, CallbackRun

from recipe_new_plugin.plugin import Target


class LossTarget(Callback):
    """Ends the run once the validation loss is low enough; every rank has one, and all get the same values.

    It overrides the moments that it needs; ``recipe_core.Callback`` lists all of them.
    """

    def __init__(self, config: Target, run: CallbackRun) -> None:
        self.config, self.run = config, run
        self.losses: list[float] = []

    def on_start(self, step: int) -> None:
        """End at once where a run that has reached the target is started again."""
        self._decide()

    def after_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Compare the last losses with the target."""
        self.losses = [*self.losses, values["val_loss"]][-self.config.evaluations :]
        self._decide()

    def _decide(self) -> None:
        if len(self.losses) >= self.config.evaluations and max(self.losses) < self.config.loss:
            self.run.stop(f"the validation loss is below {self.config.loss}")

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, so that a resumed run behaves as if it had not stopped."""
        return {"losses": self.losses}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint; settings may have changed since."""
        self.losses = state["losses"][-self.config.evaluations :]
