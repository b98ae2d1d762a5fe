"""The hooks. A plugin implements any of them in a module that imports no torch.

A plugin is a package with an entry point in the group ``recipe.plugins`` that names such a module. Hooks take no
arguments and return an iterable of contributions, which name their code and do not import it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from recipe_core.hooks.launcher import Launcher
from recipe_core.hooks.loop_specs import CallbackSpec, LossSpec, OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.specs import CheckpointFormat, Dataset, EngineSpec, Layout, Model, Recipe

PROJECT = "recipe"
GROUP = "recipe.plugins"
hookimpl = pluggy.HookimplMarker(PROJECT)
"""The decorator of the functions in a plugin's module that implement a hook."""
_hookspec = pluggy.HookspecMarker(PROJECT)


@_hookspec
def register_models() -> Iterable[Model]:
    """Return the models that this plugin adds.

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import Model, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Gpt:
            layers: int = 12
            hidden: int = 768


        @hookimpl
        def register_models() -> Iterable[Model]:
            yield Model(
                name="gpt",
                build="my_plugin.model:build",  # build(config) -> (module, loss)
                facts="my_plugin.facts:model_facts",  # model_facts(config, sequence) -> ModelFacts
                config=Gpt,
                blocks="blocks.*",
                summary="decoder-only transformer",
            )
    """
    return ()


@_hookspec
def register_datasets() -> Iterable[Dataset]:
    """Return the datasets that this plugin adds.

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import Dataset, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class TokenFiles:
            files: tuple[str, ...] = ()
            sequence: int = 1024

            def __post_init__(self) -> None:
                if self.sequence < 1:
                    raise ValueError(f"sequence: expected at least 1, got {self.sequence}")


        @hookimpl
        def register_datasets() -> Iterable[Dataset]:
            yield Dataset(
                name="token_files",
                build="my_plugin.data:build",  # build(config, run) -> Samples
                facts="my_plugin.facts:data_facts",  # data_facts(config) -> DataFacts
                config=TokenFiles,
                summary="memory-mapped token files",
            )
    """
    return ()


@_hookspec
def register_layouts() -> Iterable[Layout]:
    """Return the parallel layouts that this plugin adds.

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import Layout, LayoutSettings, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class TensorParallel(LayoutSettings):
            tp: int = 2

            def axes(self, world_size: int) -> dict[str, int]:
                return {"dp": max(1, world_size // self.tp), "tp": self.tp}


        @hookimpl
        def register_layouts() -> Iterable[Layout]:
            yield Layout(
                name="tp",
                build="my_plugin.layout:build",  # build(module, config, run) -> Parallel
                config=TensorParallel,
                summary="tensor parallel: ranks share each layer",
            )
    """
    return ()


@_hookspec
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    """Return the checkpoint formats that this plugin adds.

    .. code-block:: python

        from collections.abc import Iterable

        from recipe_core import CheckpointFormat, hookimpl


        @hookimpl
        def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
            yield CheckpointFormat(
                name="single_file",
                build="my_plugin.checkpoint:SingleFile",  # a subclass of recipe_core.checkpoint.formats.base.Format
                patterns=("*.weights",),  # names of its files, by which it is known
                summary="one file, written by rank 0",
            )
    """
    return ()


@_hookspec
def register_engines() -> Iterable[EngineSpec]:
    """Return the engines that this plugin adds: each drives a kind of devices.

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import EngineSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class MyDevices:
            bucket_mb: float = 25.0


        @hookimpl
        def register_engines() -> Iterable[EngineSpec]:
            yield EngineSpec(
                name="my_devices",
                build="my_plugin.engine:build",  # build(config, train, layout) -> Engine
                config=MyDevices,
                claims="my_plugin.machine:claims",  # claims(device) -> bool: what engine=auto takes here
                problems="my_plugin.machine:problems",  # problems(config, train, layout, processes) -> messages
                layouts={"ddp": "my_plugin.layouts:replicated"},  # instead of the layout's own build
                summary="devices of mine",
            )
    """
    return ()


@_hookspec
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
                metrics={"largest_logit": "max"},
                summary="cross entropy with smoothed labels",
            )
    """
    return ()


@_hookspec
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


@_hookspec
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


@_hookspec
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


@_hookspec
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


@_hookspec
def register_recipes() -> Iterable[Recipe]:
    """Return the recipes that this plugin adds; their parts, given by name, may be of other plugins.

    .. code-block:: python

        from collections.abc import Iterable

        from recipe_core import Recipe, Train, Use, hookimpl


        @hookimpl
        def register_recipes() -> Iterable[Recipe]:
            yield Recipe(
                name="my_gpt",
                summary="GPT pre-training on memory-mapped token files",
                model=Use("gpt", layers=4, hidden=256),
                data=Use("token_files", sequence=256),
                layout=Use("ddp"),
                checkpoint=Use("dcp"),
                train=Train(steps=300, global_batch=32, micro_batch=8, lr=1e-3),
                variants={"tiny": {"model": {"layers": 2, "hidden": 64}, "train": {"steps": 4}}},
            )
    """
    return ()


@_hookspec
def register_launchers() -> Iterable[Launcher]:
    """Return the launchers that this plugin adds: batch systems for ``recipe submit NAME --to LAUNCHER``.

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import Launcher, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Pbs:
            queue: str = ""


        @hookimpl
        def register_launchers() -> Iterable[Launcher]:
            yield Launcher(
                name="pbs",
                build="my_plugin.pbs:scripts",  # scripts(submission, config) -> {file name: text}
                submit="my_plugin.pbs:submit",  # submit(folder, names) -> job id; without it, the text is printed
                config=Pbs,  # the section ``pbs`` of the site profile
                summary="PBS Professional",
            )
    """
    return ()
