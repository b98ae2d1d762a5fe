"""The transform ``neftune``, and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import TransformSpec, hookimpl


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Uniform noise on the embeddings of the tokens, in training only."""

    alpha: float = 5.0
    """The noise of each value is at most ``alpha / sqrt(sequence * width)``."""
    module: str = ""
    """The embedding, by its name in the model; empty: the first one."""

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"alpha: expected a number above 0, got {self.alpha}")


@hookimpl
def register_transforms() -> Iterable[TransformSpec]:
    """The transform: ``recipe run RECIPE train.init_from=RUN transforms=neftune transform.neftune.alpha=10``."""
    yield TransformSpec(
        name="neftune",
        build="recipe_neftune.transform:add_noise",
        config=Noise,
        free=("alpha", "module"),  # the trained weights compute the same with any of them
        summary="NEFTune: uniform noise on the embeddings of the tokens, in training only",
    )
