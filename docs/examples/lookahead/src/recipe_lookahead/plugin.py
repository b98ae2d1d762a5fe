"""The callback ``lookahead``, and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import CallbackSpec, Train, hookimpl


@dataclass(frozen=True, kw_only=True)
class Lookahead:
    """Slow weights, which follow the weights of the optimizer."""

    every: int = 5
    """Steps of the optimizer between two updates of the slow weights."""
    share: float = 0.5
    """Share of the way to the optimizer's weights that an update takes."""

    def __post_init__(self) -> None:
        if self.every < 1 or not 0 < self.share <= 1:
            raise ValueError(f"every, share: expected at least 1 and above 0 to 1, got {self.every} and {self.share}")


def problems(config: Lookahead, train: Train) -> Iterable[str]:
    """Yield a problem if the optimizer would overwrite what the callback changes."""
    if train.optimizer_states == "master":
        yield "the optimizer keeps weights of its own; choose another train.optimizer_states"


@hookimpl
def register_callbacks() -> Iterable[CallbackSpec]:
    """The callback."""
    yield CallbackSpec(
        name="lookahead",
        build="recipe_lookahead.callback:SlowWeights",
        config=Lookahead,
        saves=True,
        bytes_per_parameter=4.0,
        problems="recipe_lookahead.plugin:problems",
        summary="lookahead: every few steps, weights return part of the way that the optimizer went",
    )
