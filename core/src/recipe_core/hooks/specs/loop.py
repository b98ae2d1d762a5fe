"""Contributions to the training loop: losses, optimizers, schedules, trackers, callbacks. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from recipe_core.errors import PluginError
from recipe_core.hooks.facts import ModelFacts, OptimizerFacts
from recipe_core.hooks.specs import Part, Reduction, Spec
from recipe_core.hooks.target import call, called
from recipe_core.hooks.train import Train

OWN_LOSS = "model"
"""The loss that a model's ``build`` returns, as a name in recipes."""
OPTIMIZER_SETTINGS = ("weight_decay", "betas", "eps", "optimizer_states", "stochastic_rounding", "trust_clip")
"""Settings of the section ``train`` that an optimizer may use, beside ``lr``."""
SCHEDULE_SETTINGS = ("min_lr", "warmup_steps", "warmup_ratio", "schedule_power")
"""Settings of the section ``train`` that a schedule may use, beside ``lr`` and ``steps``."""


@dataclass(frozen=True, kw_only=True)
class LossSpec(Spec):
    """``build(config, own) -> loss``: another loss for a model, or one around the model's ``own``.

    ``loss(output, batch)`` has the contract of a model's loss: see :class:`recipe_core.Model`.
    """

    build: str = field(metadata=called("config", "own"))
    takes: tuple[str, ...] = ()
    """Names of the tensors that a micro batch must have for it, beside those of :attr:`recipe_core.Model.takes`."""
    needs: tuple[str, ...] = ()
    """Names of what it reads of the model's output, with :func:`recipe_core.output_of`; a model that declares others
    (:attr:`recipe_core.Model.outputs`) is refused before the run. Empty: not checked."""
    metrics: Mapping[str, Reduction] = field(default_factory=dict)
    """How what it returns is reduced, over what the model declares; see :attr:`recipe_core.Model.metrics`."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Spec):
    """``build(config, trainable) -> torch.optim.Optimizer``, see :class:`recipe_core.train.optim.build.Trainable`.

    The optimizer works on the local tensors of the layout: plain tensors and DTensors of several meshes, side by side.
    The loop sets ``lr`` of every parameter group before each step. States are tensors placed as their parameters are
    (or numbers), so that checkpoints of one layout load under another; a step with zero gradients and ``lr`` 0 makes
    those that are missing and moves nothing.
    """

    build: str = field(metadata=called("config", "trainable"))
    facts: str = field(default="", metadata=called("config", "train", "model"))
    """``package.module:function(config, train, model) -> OptimizerFacts``, without torch; ``model`` is the
    :class:`recipe_core.ModelFacts`. Empty: the memory is unknown."""
    problems: str = field(default="", metadata=called("config", "train", "layout", "model"))
    """``package.module:function(config, train, layout, model) -> Iterable[str]``, without torch: a message for each
    requested feature that it lacks. ``layout`` and ``model`` are the run's :class:`Part`, None if they are invalid."""
    uses: tuple[str, ...] = ()
    """Settings of the section ``train`` that it uses, beside ``lr``: ``weight_decay``, ``betas``, ``eps``,
    ``optimizer_states``, ``stochastic_rounding``, ``trust_clip``. They may be given as its own too
    (``optimizer.betas=0.9,0.95``). The last three are refused where an optimizer does not use them."""


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec(Spec):
    """``build(config, train) -> rate``, without torch: ``rate(step)`` is the learning rate of an optimizer step.

    Steps count from 0. The same arguments must always give the same rates: nothing of a schedule is saved.
    """

    build: str = field(metadata=called("config", "train"))
    uses: tuple[str, ...] = ()
    """Settings of the section ``train`` that it uses, beside ``lr`` and ``steps``: ``min_lr``, ``warmup_steps``,
    ``warmup_ratio``, ``schedule_power``. They may be given as its own too (``schedule.min_lr=1e-5``)."""


@dataclass(frozen=True, kw_only=True)
class TrackerSpec(Spec):
    """``build(config, run) -> Tracker``: opens a place where metrics are shown, on rank 0 alone.

    ``run`` is a :class:`recipe_core.train.metrics.tracker.TrackedRun`; see
    :class:`recipe_core.train.metrics.tracker.Tracker` for what is returned. An error of a tracker is printed once
    and never ends a run.
    """

    build: str = field(metadata=called("config", "run"))


@dataclass(frozen=True, kw_only=True)
class CallbackSpec(Spec):
    """``build(config, run) -> Callback``: code that runs at named moments of training, on every rank.

    ``run`` is a :class:`recipe_core.CallbackRun`; see :class:`recipe_core.Callback` for the moments. An error of a
    callback ends the run with its name.
    """

    build: str = field(metadata=called("config", "run"))
    saves: bool = False
    """It has a state, which checkpoints hold and a resumed run continues with."""
    fatal: bool = True
    """False: an error is printed once, and training continues without this callback. It must then not communicate:
    other ranks would wait for it."""
    bytes_per_parameter: float = 0.0
    """Memory of its state for each parameter that a rank holds, for ``recipe check``."""
    problems: str = field(default="", metadata=called("config", "train"))
    """``package.module:function(config, train) -> Iterable[str]``, without torch: a message for each reason why the
    run cannot have it."""


def optimizer_facts(
    optimizer: Part[OptimizerSpec] | None, train: Train, model: ModelFacts, callbacks: Sequence[Part[CallbackSpec]] = ()
) -> OptimizerFacts | None:
    """Return the memory of the optimizer and of callbacks' states; None if that of the optimizer is unknown."""
    if optimizer is None or not optimizer.spec.facts:
        return None
    owner = f"optimizer {optimizer.spec.name!r}"
    facts = call(optimizer.spec.facts, owner, optimizer.config, train, model)
    if not isinstance(facts, OptimizerFacts):
        raise PluginError(f"{owner}: {optimizer.spec.facts!r} returned {facts!r:.60}; expected an OptimizerFacts")
    more = sum(part.spec.bytes_per_parameter for part in callbacks)
    return replace(facts, bytes_per_parameter=facts.bytes_per_parameter + more)
