"""Evaluations: numbers that are measured of a model during training, and by ``recipe eval``. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks.specs import Spec
from recipe_core.hooks.target import called

Taken = Literal["loss", "score", "generate"]
TAKEN: tuple[Taken, ...] = ("loss", "score", "generate")
"""The functions of a model that an evaluation may take."""
RESERVED = ("train", "valid", "speed", "system")
"""Groups under which trackers show the other metrics of a run."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSpec(Spec):
    """``build(config, model) -> measure``: numbers that are measured of a model.

    ``model`` is a :class:`recipe_core.EvaluatedModel`, in a run under any layout, or of a checkpoint. ``measure()``
    returns a dict of finite numbers by name, the same on all ranks; metrics.jsonl has them as ``NAME/number``. Every
    rank calls ``build`` once before the first step, and ``measure`` at each evaluation. Gradients are off, and random
    generators are seeded anew each time and restored afterwards.
    """

    build: str = field(metadata=called("config", "model"))
    takes: tuple[str, ...] = ()
    """Functions of the model that it needs: ``loss`` (its loss and output on samples of a dataset), ``score``
    (log-likelihoods of texts, see :attr:`recipe_core.Model.score`), ``generate`` (continuations of prompts, see
    :attr:`recipe_core.Model.generate`). A run whose model or layout lacks one is refused before it starts."""
    fatal: bool = True
    """False: an error is printed once, and training continues without this evaluation. It must then fail on all ranks
    alike, or within :meth:`recipe_core.EvaluatedModel.map`, which shares an error among the ranks."""
    problems: str = field(default="", metadata=called("config", "train", "model", "data"))
    """``package.module:function(config, train, model, data) -> Iterable[str]``, without torch: a message for each
    reason why the run cannot have it. ``model`` and ``data`` are the run's :class:`Part`, None if they are invalid."""


def require_evaluation(spec: EvaluationSpec, hook: str) -> None:
    """Check the name of an evaluation, and what it takes.

    Raises:
        PluginError: the name is reserved, or it takes what no model gives.
    """
    if spec.name in RESERVED:
        raise PluginError(
            f"{hook}: the name {spec.name!r} is reserved for other metrics of a run ({', '.join(RESERVED)}); choose "
            "another name"
        )
    for word in spec.takes:
        if word not in TAKEN:
            raise PluginError(
                f"{hook}: {spec.name!r} takes {word!r}{did_you_mean(str(word), TAKEN)} (known: {', '.join(TAKEN)})"
            )
