"""The run ends after enough evaluations below the target, also where it was stopped between them."""

from types import SimpleNamespace
from typing import Any

from recipe_new_plugin.callback import LossTarget
from recipe_new_plugin.plugin import Target


def test_two_evaluations_in_a_row_must_be_below() -> None:
    reasons: list[str] = []
    run: Any = SimpleNamespace(stop=reasons.append)
    first, resumed = (LossTarget(Target(loss=1.0, evaluations=2), run) for _ in range(2))
    for step, loss in enumerate([0.9, 1.1, 0.9]):
        first.after_evaluation(step, {"val_loss": loss})
    resumed.load_state(first.state())
    resumed.on_start(2)
    assert reasons == []
    resumed.after_evaluation(3, {"val_loss": 0.8})
    assert reasons == ["the validation loss is below 1.0"]
