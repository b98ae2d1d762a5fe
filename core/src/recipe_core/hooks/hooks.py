"""The hooks. A plugin implements any of them in a module that imports no torch.

A plugin is a package with an entry point in the group ``recipe.plugins`` that names such a module. Hooks take no
arguments and return an iterable of contributions, which name their code and do not import it.
"""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core.hooks.loop_hooks import register_callbacks as register_callbacks
from recipe_core.hooks.loop_hooks import register_data_wrappers as register_data_wrappers
from recipe_core.hooks.loop_hooks import register_evaluations as register_evaluations
from recipe_core.hooks.loop_hooks import register_losses as register_losses
from recipe_core.hooks.loop_hooks import register_optimizers as register_optimizers
from recipe_core.hooks.loop_hooks import register_schedules as register_schedules
from recipe_core.hooks.loop_hooks import register_trackers as register_trackers
from recipe_core.hooks.loop_hooks import register_transforms as register_transforms
from recipe_core.hooks.markers import hookspec
from recipe_core.hooks.program_hooks import register_commands as register_commands
from recipe_core.hooks.program_hooks import register_executors as register_executors
from recipe_core.hooks.program_hooks import register_launchers as register_launchers
from recipe_core.hooks.specs import CheckpointFormat, Dataset, EngineSpec, Layout, Model, Recipe


@hookspec
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


@hookspec
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


@hookspec
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


@hookspec
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


@hookspec
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


@hookspec
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
