"""Transforms, which change a model before the layout divides it: frozen parameters, adapters. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recipe_core.hooks.specs import Spec
from recipe_core.hooks.target import called

MEASURED = "recipe_core.train.building.transforms.facts:measured"
"""``function(model, transforms, facts, sequence) -> ModelFacts``: the facts of a transformed model."""


@dataclass(frozen=True, kw_only=True)
class TransformSpec(Spec):
    """``build(config, module, structure) -> module``: the model with frozen, further or other parameters.

    It runs on every rank before the layout divides the model, in the order of ``train.transforms``. ``module`` may be
    on the meta device. It returns the module, or None if it changed it in place; ``(module, structure)`` where new
    submodules need roles of a tensor plan. Parameters and buffers keep their names and shapes, so that a checkpoint of
    the model still loads; new ones are added beside them. A submodule gives its new parameters their values by a method
    ``initial_value(name, shape)``, which depends on the seed, the name and the shape alone, and returns None for what
    it leaves to the model; see :class:`recipe_core.Deferred`.
    """

    build: str = field(metadata=called("config", "module", "structure"))
    free: tuple[str, ...] = ()
    """Settings that do not change what the trained weights compute, such as dropout. A continued run must keep all
    others."""
    merge: str = field(default="", metadata=called("config", "weights"))
    """``package.module:function(config, weights) -> dict``: the weights of the model without the transform, from those
    with it; both map names to :class:`recipe_core.Lazy`. Conversions to names of other projects call it. Empty: it adds
    no weights, or such conversions are refused."""
    exports: Mapping[str, str] = field(default_factory=dict, metadata=called("config", "weights", "adapter"))
    """Names of what it adds in folders of adapters, by checkpoint format (``peft``): for each,
    ``package.module:function(config, weights, adapter) -> Adapter``. ``weights`` are those of the model with the
    transform, and ``adapter`` is the model's for the naming of the format."""
    problems: str = field(default="", metadata=called("config", "train"))
    """``package.module:function(config, train) -> Iterable[str]``, without torch: a message for each reason why the
    run cannot have it."""
