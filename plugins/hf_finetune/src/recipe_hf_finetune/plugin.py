"""Everything that this plugin registers. Start here."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import CheckpointFormat, Dataset, Model, Recipe, Use, hookimpl, variants_of
from recipe_hf_finetune.settings import FineTune, SequenceClassifier, TextClassification


@hookimpl
def register_models() -> Iterable[Model]:
    """Any model of transformers with a classification head."""
    yield Model(
        name="sequence_classifier",
        build="recipe_hf_finetune.model.classifier:build",
        facts="recipe_hf_finetune.model.facts:facts",
        blank="recipe_hf_finetune.model.classifier:blank",
        config=SequenceClassifier,
        takes=("input_ids", "attention_mask", "labels"),
        outputs=("logits",),
        free=("source", "recipe", "revision", "tokenizer", "dropout"),
        resolved="recipe_hf_finetune.settings:SequenceClassifier.resolved",
        generate="recipe_hf_finetune.results.inference:generate",
        evaluate="recipe_hf_finetune.results.inference:evaluate",
        adapters={"hf": "recipe_hf_finetune.model.naming:ClassifierNaming"},
        summary="a model of Hugging Face's with a head for classification, from a hub, a folder, or any checkpoint",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """Labelled sentences and sentence pairs."""
    yield Dataset(
        name="text_classification",
        build="recipe_hf_finetune.data.samples:build",
        facts="recipe_hf_finetune.data.facts:facts",
        config=TextClassification,
        gives=("input_ids", "attention_mask", "labels"),
        tokenizer="recipe_hf_finetune.data.vocabulary:files",
        summary="labelled sentences or pairs: GLUE, files of your own, or pairs made of Python's own text",
    )


@hookimpl
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    """Checkpoints of the Trainer."""
    yield CheckpointFormat(
        name="hf_trainer",
        build="recipe_hf_finetune.checkpoint:TrainerFormat",
        patterns=("trainer_state.json",),
        naming="hf",
        runs="hf_finetune",
        refines="hf",
        summary="a folder of Hugging Face's Trainer: model, tokenizer, optimizer, schedule and random states",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """Fine-tuning, by default of the BERT that ``recipe run bert_dp`` trains and, to compare, from random weights."""
    yield Recipe(
        name="hf_finetune",
        summary="fine-tuning for classification of text, with Hugging Face's Trainer",
        model=Use("sequence_classifier", source="recipe:bert_dp"),
        data=Use("text_classification", max_length=64, pad_to_max_length=None),
        checkpoint=Use("hf_trainer"),
        train=FineTune(
            epochs=2.0,
            batch_per_process=16,
            micro_batch=16,
            lr=5e-4,
            seeds=3,  # with one, the difference between the two starts may be chance
            random_start=True,
            precision="bf16_mixed",
            log_every=50,
        ),
        transforms={"lora": {"trained": ("*classifier",)}},  # a new head; an adapter of random weights learns little
        run="recipe_hf_finetune.run:run",
        applies_transforms=True,
        problems="recipe_hf_finetune.checks:problems",
        variants=variants_of("recipe_hf_finetune"),
    )
