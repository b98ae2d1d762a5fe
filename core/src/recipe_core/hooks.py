"""The five hooks. A plugin implements any of them in a module that imports no torch.

A plugin is a package with an entry point in the group ``recipe.plugins`` that names such a module.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from recipe_core.specs import CheckpointFormat, Dataset, Layout, Model, Recipe

PROJECT = "recipe"
GROUP = "recipe.plugins"
hookimpl = pluggy.HookimplMarker(PROJECT)
_hookspec = pluggy.HookspecMarker(PROJECT)


@_hookspec
def register_models() -> Iterable[Model]:
    """Return the models that this plugin adds.

    .. code-block:: python

        @hookimpl
        def register_models():
            yield Model(
                name="gpt",
                build="recipe_megatron_gpt.model:build",
                facts="recipe_megatron_gpt.facts:facts",
                config=Gpt,
                blocks="blocks.*",
                summary="decoder-only transformer, as Megatron-LM trains it",
            )
    """
    return ()


@_hookspec
def register_datasets() -> Iterable[Dataset]:
    """Return the datasets that this plugin adds.

    .. code-block:: python

        @hookimpl
        def register_datasets():
            yield Dataset(
                name="gpt_indexed",
                build="recipe_megatron_gpt.data:build",
                facts="recipe_megatron_gpt.facts:data_facts",
                config=GptIndexed,
                summary="Megatron's .bin/.idx token files",
            )
    """
    return ()


@_hookspec
def register_layouts() -> Iterable[Layout]:
    """Return the parallel layouts that this plugin adds.

    .. code-block:: python

        @hookimpl
        def register_layouts():
            yield Layout(
                name="ddp",
                build="recipe_core.layouts:ddp",
                config=Ddp,
                summary="data parallel: every rank holds the whole model",
            )
    """
    return ()


@_hookspec
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    """Return the checkpoint formats that this plugin adds.

    .. code-block:: python

        @hookimpl
        def register_checkpoint_formats():
            yield CheckpointFormat(
                name="dcp",
                build="recipe_core.formats:Dcp",
                summary="torch.distributed.checkpoint: sharded, loads into any layout",
            )
    """
    return ()


@_hookspec
def register_recipes() -> Iterable[Recipe]:
    """Return the recipes that this plugin adds.

    .. code-block:: python

        @hookimpl
        def register_recipes():
            yield Recipe(
                name="megatron_gpt",
                summary="GPT pre-training on memory-mapped token files",
                model=Use("gpt", layers=4, hidden=256, heads=4),
                data=Use("gpt_indexed", sequence=256),
                train=Train(steps=300, global_batch=32, micro_batch=8, lr=1e-3),
                variants={"tiny": {"model": {"layers": 2, "hidden": 64}, "train": {"steps": 4}}},
            )
    """
    return ()
