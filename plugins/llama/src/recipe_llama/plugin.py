"""The contributions of this plugin. Start here."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import Model, Recipe, Stages, Train, Use, hookimpl, variants_of
from recipe_llama.settings import Llama


@hookimpl
def register_models() -> Iterable[Model]:
    """The model ``llama``."""
    yield Model(
        name="llama",
        build="recipe_llama.model.llama:build",
        facts="recipe_llama.model.facts:facts",
        adapters={"hf": "recipe_llama.model.hf:HuggingFace"},
        config=Llama,
        blocks="blocks.*",
        plan="recipe_llama.model.tensor_plan:plan",
        document_mask=True,
        stages=Stages(first=("tokens",), last=("norm", "head")),
        deferred=True,
        free=("init_std",),
        resolved="recipe_llama.settings:Llama.resolved",
        takes=("tokens", "labels"),
        outputs=("losses",),
        example="recipe_llama.model.llama:example",
        generate="recipe_core:generate_text",
        evaluate="recipe_core:evaluate_text",
        score="recipe_core:score_text",
        summary="decoder-only transformer: Llama, Qwen, Mistral and SmolLM, dense",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """The recipe ``llama``."""
    yield Recipe(
        name="llama",
        summary="Llama, Qwen, Mistral or SmolLM, dense, on memory-mapped token files",
        model=Use(
            "llama",
            layers=4,
            hidden=256,
            heads=4,
            kv_heads=2,
            mlp=704,
            positions=256,
            vocabulary=8192,
            tied=True,
            init_std=0.04,
        ),
        data=Use("gpt_indexed", sequence=128, vocabulary=8192),
        train=Train(
            steps=600,
            global_batch=4,
            micro_batch=2,
            lr=1e-3,
            warmup_steps=20,
            weight_decay=0.1,
            betas=(0.9, 0.999),
            precision="bf16_mixed",
            log_every=20,
            eval_every=150,
            eval_samples=32,
            save_every=300,
        ),
        closing="recipe_megatron_gpt.generate:closing",
        variants=variants_of("recipe_llama"),
    )
