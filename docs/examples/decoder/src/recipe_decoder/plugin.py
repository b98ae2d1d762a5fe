"""This plugin's contributions. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import Model, Recipe, Stages, Train, Use, hookimpl
from recipe_decoder.settings import Decoder

API = 1


@hookimpl
def register_models() -> Iterable[Model]:
    """The model."""
    yield Model(
        name="decoder",
        summary="decoder-only transformer as Llama has it",
        config=Decoder,
        build="recipe_decoder.model:build",
        facts="recipe_decoder.facts:facts",
        takes=("tokens", "labels"),
        outputs=("losses",),
        free=("init_std",),
        blocks="blocks.*",
        plan="recipe_decoder.tensor_plan:plan",
        stages=Stages(first=("tokens",), last=("norm", "head")),
        deferred=True,
        adapters={"hf": "recipe_decoder.hf:HuggingFace"},
        example="recipe_decoder.model:example",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """The model on megatron_gpt's token files."""
    tiny = {
        "model": {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "mlp": 48, "positions": 32, "vocabulary": 512},
        "data": {"sequence": 32, "vocabulary": 512},
        "train": {"steps": 4, "global_batch": 8, "micro_batch": 2, "eval_samples": 4},
    }
    yield Recipe(
        name="decoder",
        summary="a Llama-style model on memory-mapped token files",
        model=Use("decoder"),
        data=Use("gpt_indexed", sequence=128),
        train=Train(steps=300, global_batch=16, micro_batch=4, lr=1e-3, warmup_steps=20, eval_every=100),
        variants={"tiny": tiny},
    )
