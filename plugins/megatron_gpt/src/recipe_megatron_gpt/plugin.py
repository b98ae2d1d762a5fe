"""The contributions of this plugin. Start here."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import CheckpointFormat, Dataset, Model, Recipe, Stages, Train, Use, hookimpl, variants_of
from recipe_megatron_gpt.settings import Gpt, GptIndexed, GptPrepare, MegatronSettings


@hookimpl
def register_models() -> Iterable[Model]:
    """The model ``gpt``."""
    yield Model(
        name="gpt",
        build="recipe_megatron_gpt.model.gpt:build",
        facts="recipe_megatron_gpt.model.facts:facts",
        adapters={
            "hf": "recipe_megatron_gpt.model.hf:GptHuggingFace",
            "megatron": "recipe_megatron_gpt.model.megatron:Megatron",
        },
        config=Gpt,
        blocks="blocks.*",
        plan="recipe_megatron_gpt.model.tensor_plan:plan",
        document_mask=True,
        stages=Stages(first=("tokens", "positions"), last=("norm", "tokens")),
        deferred=True,
        free=("dropout", "attention_dropout", "init_std"),
        takes=("tokens", "labels"),
        outputs=("losses",),
        example="recipe_megatron_gpt.model.gpt:example",
        generate="recipe_core:generate_text",
        evaluate="recipe_core:evaluate_text",
        score="recipe_core:score_text",
        summary="decoder-only transformer, as Megatron-LM trains it",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """The dataset ``gpt_indexed``."""
    yield Dataset(
        name="gpt_indexed",
        build="recipe_megatron_gpt.data.samples:build",
        facts="recipe_megatron_gpt.data.facts:facts",
        indices="recipe_megatron_gpt.data.arrays.indices:index_facts",
        identity="recipe_megatron_gpt.data.identity:identity",
        config=GptIndexed,
        free=("phases", "fetch_memory"),
        gives=("tokens", "labels"),
        prepare="recipe_megatron_gpt.prepare.indexed:prepare",
        prepare_config=GptPrepare,
        prepare_part="recipe_megatron_gpt.prepare.parts:prepare_part",
        merge_parts="recipe_megatron_gpt.prepare.parts:merge",
        part_example="recipe_megatron_gpt.prepare.example:part_example",
        prepare_example="recipe_megatron_gpt.prepare.example:example",
        files="recipe_megatron_gpt.data.inspect:TokenData",
        tokenizer="recipe_megatron_gpt.tokenizer.files:files",
        documents="recipe_megatron_gpt.data.documents:documents",
        summary="Megatron's .bin/.idx token files; without files, the English text that CPython carries",
    )


@hookimpl
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    """The checkpoint format ``megatron``."""
    yield CheckpointFormat(
        name="megatron",
        build="recipe_megatron_gpt.checkpoint.format:MegatronFormat",
        config=MegatronSettings,
        patterns=(
            "latest_checkpointed_iteration.txt",
            "model_optim_rng.pt",
            "mp_rank_*/model_optim_rng.pt",
            "iter_*/mp_rank_*/model_optim_rng.pt",
        ),
        naming="megatron",
        ranks=True,
        pads=True,
        summary="a folder for Megatron-LM, a file for each tensor-parallel and pipeline rank; for conversion",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """The recipe ``megatron_gpt``."""
    yield Recipe(
        name="megatron_gpt",
        summary="GPT pre-training on memory-mapped token files",
        # Small enough for two cores. Most parameters are in the embedding. Batches are small, since many short steps
        # train better here than few long ones; beta2 is large, because the gradients of rare words are rare.
        model=Use(
            "gpt",
            layers=2,
            hidden=320,
            heads=5,
            positions=256,
            vocabulary=8192,
            dropout=0.0,
            attention_dropout=0.0,
            init_std=0.035,  # sqrt(2 / (5 hidden)), Nguyen and Salazar, 2019
        ),
        data=Use("gpt_indexed", sequence=128, vocabulary=8192),
        train=Train(
            steps=1300,
            global_batch=4,
            micro_batch=2,
            lr=6e-4,
            warmup_steps=20,
            weight_decay=0.1,
            betas=(0.9, 0.999),
            precision="bf16_mixed",
            log_every=20,
            eval_every=130,
            eval_samples=32,
            save_every=650,
        ),
        variants=variants_of("recipe_megatron_gpt"),
        log_formats={"megatron": "recipe_megatron_gpt.console:line"},
        closing="recipe_megatron_gpt.generate:closing",
    )
