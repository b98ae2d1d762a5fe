"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import Dataset, Model, Recipe, Stages, Train, Use, hookimpl

from recipe_new_plugin.settings import Decoder, Steps


@hookimpl
def register_models() -> Iterable[Model]:
    """The model: its code, and how it can be sharded."""
    yield Model(
        name="new_plugin_decoder",
        build="recipe_new_plugin.model:build",
        facts="recipe_new_plugin.facts:model_facts",
        config=Decoder,
        blocks="blocks.*",  # layout=fsdp gathers them one by one, and activation checkpointing recomputes them
        plan="recipe_new_plugin.facts:tensor_plan",  # layout=tp
        stages=Stages(first=("tokens", "positions"), last=("norm", "output")),  # layout=pp
        deferred=True,  # build() gives no values under torch.device("meta"), initial_value() does
        free=("init_std",),  # changes nothing about the function that a trained model computes
        takes=("tokens", "labels"),
        summary="a decoder-only transformer",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """Synthetic data to learn, until there is real data."""
    yield Dataset(
        name="new_plugin_steps",
        build="recipe_new_plugin.data:build",
        facts="recipe_new_plugin.facts:data_facts",
        config=Steps,
        gives=("tokens", "labels"),
        summary="sequences that go up by a constant step",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """The recipe: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a decoder-only transformer learns to count in steps",
        model=Use("new_plugin_decoder"),
        data=Use("new_plugin_steps"),
        train=Train(
            steps=300, global_batch=16, micro_batch=8, lr=1e-3, warmup_steps=20, eval_every=100
        ),
        variants={
            "tiny": {
                "model": {"layers": 2, "hidden": 32, "heads": 2, "positions": 16},
                "data": {"sequence": 16},
                "train": {
                    "steps": 8,
                    "global_batch": 8,
                    "micro_batch": 2,
                    "warmup_steps": 0,
                    "log_every": 1,
                },
            }
        },
    )
