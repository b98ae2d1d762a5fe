"""The hooks of the training loop: losses, optimizers, schedules, trackers, callbacks, evaluations, and others."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core.hooks.markers import hookspec
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.hooks.specs.loop import CallbackSpec, LossSpec, OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.hooks.specs.wrapper import DataWrapperSpec


@hookspec
def register_losses() -> Iterable[LossSpec]:
    """Return the losses that this plugin adds, for models of any plugin (``loss=NAME``).

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import LossSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Smoothed:
            smoothing: float = 0.1


        @hookimpl
        def register_losses() -> Iterable[LossSpec]:
            yield LossSpec(
                name="smoothed",
                build="my_plugin.loss:build",  # build(config, own) -> loss; own: the model's, to build upon
                config=Smoothed,
                takes=("labels",),
                needs=("logits",),  # of the model's output: output_of(output, "logits")
                metrics={"largest_logit": "max"},
                summary="cross entropy with smoothed labels",
            )
    """
    return ()


@hookspec
def register_optimizers() -> Iterable[OptimizerSpec]:
    """Return the optimizers that this plugin adds.

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import OptimizerFacts, OptimizerSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Momentum:
            momentum: float = 0.9


        def facts(config, train, model) -> OptimizerFacts:
            return OptimizerFacts(bytes_per_parameter=4.0)


        @hookimpl
        def register_optimizers() -> Iterable[OptimizerSpec]:
            yield OptimizerSpec(
                name="momentum",
                build="my_plugin.optimizer:build",  # build(config, trainable) -> torch.optim.Optimizer
                facts="my_plugin.plugin:facts",
                config=Momentum,
                uses=("weight_decay",),  # of the section train
                summary="stochastic gradient descent with momentum",
            )
    """
    return ()


@hookspec
def register_schedules() -> Iterable[ScheduleSpec]:
    """Return the learning-rate schedules that this plugin adds.

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import ScheduleSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Halving:
            every: int = 1000


        def build(config, train):
            return lambda step: train.lr * 0.5 ** (step // config.every)


        @hookimpl
        def register_schedules() -> Iterable[ScheduleSpec]:
            yield ScheduleSpec(
                name="halving",
                build="my_plugin.plugin:build",  # build(config, train) -> rate(step)
                config=Halving,
                summary="half the rate every N steps",
            )
    """
    return ()


@hookspec
def register_trackers() -> Iterable[TrackerSpec]:
    """Return the trackers that this plugin adds: places where metrics are shown (``train.trackers=NAME,NAME``).

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import TrackerSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Csv:
            file: str = "metrics.csv"


        @hookimpl
        def register_trackers() -> Iterable[TrackerSpec]:
            yield TrackerSpec(
                name="csv",
                build="my_plugin.tracker:build",  # build(config, run) -> Tracker, which has log and close
                config=Csv,
                summary="metrics as a table in the run folder",
            )
    """
    return ()


@hookspec
def register_callbacks() -> Iterable[CallbackSpec]:
    """Return the callbacks that this plugin adds: code at named moments of training (``train.callbacks=NAME,NAME``).

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import CallbackSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Target:
            loss: float = 2.0


        @hookimpl
        def register_callbacks() -> Iterable[CallbackSpec]:
            yield CallbackSpec(
                name="target",
                build="my_plugin.callback:build",  # build(config, run) -> Callback
                config=Target,
                saves=False,  # True: its state is part of checkpoints
                summary="end the run once the validation loss is low enough",
            )
    """
    return ()


@hookspec
def register_evaluations() -> Iterable[EvaluationSpec]:
    """Return the evaluations that this plugin adds: numbers measured of any model (``train.evaluations=NAME,NAME``).

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import EvaluationSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Confidence:
            samples: int = 64


        @hookimpl
        def register_evaluations() -> Iterable[EvaluationSpec]:
            yield EvaluationSpec(
                name="confidence",
                build="my_plugin.evaluation:build",  # build(config, model) -> measure; measure() -> {"mean": 0.5}
                config=Confidence,
                takes=("loss",),  # score: log-likelihoods of texts; generate: continuations of prompts
                fatal=False,  # an error is printed, and training continues
                summary="mean probability of the likeliest class",
            )
    """
    return ()


@hookspec
def register_data_wrappers() -> Iterable[DataWrapperSpec]:
    """Return the data wrappers that this plugin adds: filters and changes around any dataset (``data.wrappers=NAME``).

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import DataWrapperSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class LongOnly:
            least: int = 20


        @hookimpl
        def register_data_wrappers() -> Iterable[DataWrapperSpec]:
            yield DataWrapperSpec(
                name="long_only",
                # build(config, samples, run) -> Samples: run.filtered(samples, keep) or run.mapped(samples, change)
                build="my_plugin.wrapper:build",
                config=LongOnly,
                takes=("tokens",),
                filters=True,
                summary="samples of at least so many different tokens",
            )
    """
    return ()


@hookspec
def register_transforms() -> Iterable[TransformSpec]:
    """Return the transforms that this plugin adds: changes of a model before it is divided (``train.transforms=NAME``).

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import TransformSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Scaled:
            modules: str = "blocks.*.mlp.down"


        @hookimpl
        def register_transforms() -> Iterable[TransformSpec]:
            yield TransformSpec(
                name="scaled",
                build="my_plugin.transform:build",  # build(config, module, structure) -> module
                merge="my_plugin.transform:merge",  # merge(config, weights) -> weights of the model alone
                config=Scaled,
                summary="a trained factor for the output of some linear layers, whose weights are frozen",
            )
    """
    return ()
