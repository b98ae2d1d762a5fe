"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import Dataset, Model, Recipe, Train, Use, hookimpl

from recipe_new_plugin.settings import NextByte, Prepare, Texts


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """The dataset: functions that read, prepare, inspect and verify it."""
    yield Dataset(
        name="new_plugin_bytes",
        build="recipe_new_plugin.data:build",
        facts="recipe_new_plugin.settings:data_facts",
        config=Texts,
        gives=("tokens", "labels"),
        prepare="recipe_new_plugin.files:prepare",  # recipe prepare new_plugin_bytes inputs=... output=...
        prepare_config=Prepare,
        prepare_example="recipe_new_plugin.files:example",
        files="recipe_new_plugin.files:ByteFiles",  # recipe inspect FOLDER, recipe verify FOLDER
        summary="bytes of text files",
    )


@hookimpl
def register_models() -> Iterable[Model]:
    """A model that reads it; other models that take ``tokens`` and ``labels`` can, too."""
    yield Model(
        name="new_plugin_next_byte",
        build="recipe_new_plugin.model:build",
        facts="recipe_new_plugin.settings:model_facts",
        config=NextByte,
        takes=("tokens", "labels"),
        summary="guesses each byte from the one before",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """The recipe: ``recipe run new_plugin data.folder=FOLDER``."""
    yield Recipe(
        name="new_plugin",
        summary="learn which byte follows which",
        model=Use("new_plugin_next_byte"),
        data=Use("new_plugin_bytes"),
        train=Train(steps=200, global_batch=16, micro_batch=8, lr=1e-2, eval_every=50),
        variants={
            "tiny": {
                "model": {"hidden": 8},
                "data": {"sequence": 16},
                "train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1},
            }
        },
    )
