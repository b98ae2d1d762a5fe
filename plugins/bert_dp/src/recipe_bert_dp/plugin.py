"""Everything that this plugin registers. Start here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recipe_bert_dp.settings import BertHdf5, BertPretraining, NeuronBert, PrepareHdf5, PreparePacked
from recipe_core import CheckpointFormat, Dataset, Model, Recipe, Train, Use, hookimpl, variants_of

_ARRAYS = (
    "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels",
)  # fmt: skip
_READ: dict[str, Any] = {
    "build": "recipe_bert_dp.data.samples:build",
    "facts": "recipe_bert_dp.data.facts:facts",
    "identity": "recipe_bert_dp.data.identity:identity",
    "config": BertHdf5,
    "gives": _ARRAYS,
    "files": "recipe_bert_dp.data.inspect:BertFiles",
    "tokenizer": "recipe_bert_dp.data.tokenizer:files",
}
"""One reader for both kinds of shards, which it distinguishes by their arrays."""


@hookimpl
def register_models() -> Iterable[Model]:
    """BERT with its pre-training heads."""
    yield Model(
        name="bert_pretraining",
        build="recipe_bert_dp.model.bert:build",
        facts="recipe_bert_dp.model.facts:facts",
        config=BertPretraining,
        blocks="bert.encoder.layer.*",
        plan="recipe_bert_dp.model.tensor_plan:plan",
        deferred=True,
        takes=_ARRAYS,
        outputs=("masked_losses", "masked_hits", "next_losses", "next_hits"),
        free=("dropout", "attention_dropout", "init_std"),
        resolved="recipe_bert_dp.settings:BertPretraining.resolved",
        example="recipe_bert_dp.model.bert:example",
        generate="recipe_bert_dp.fill_mask:generate",
        adapters={"hf": "recipe_bert_dp.model.hf:BertHuggingFace"},
        summary="BERT with masked words and next sentence, as Hugging Face's BertForPreTraining",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """HDF5 shards: NVIDIA's and Neuron's, with one sample per row, and Habana's, with several."""
    yield Dataset(
        name="bert_hdf5",
        prepare="recipe_bert_dp.prepare.hdf5:prepare",
        prepare_config=PrepareHdf5,
        prepare_example="recipe_bert_dp.prepare.example:text",
        prepare_part="recipe_bert_dp.prepare.parts:prepare_part",
        merge_parts="recipe_bert_dp.prepare.parts:merge",
        summary="BERT's HDF5 shards: masked words and next sentence",
        **_READ,
    )
    yield Dataset(
        name="bert_packed",
        prepare="recipe_bert_dp.prepare.pack:prepare",
        prepare_config=PreparePacked,
        prepare_example="recipe_bert_dp.prepare.example:shards",
        prepare_part="recipe_bert_dp.prepare.packed_parts:prepare_part",
        merge_parts="recipe_bert_dp.prepare.packed_parts:merge",
        summary="the same with several samples packed into each row",
        **_READ,
    )


@hookimpl
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    """Files of Neuron's and NVIDIA's scripts."""
    yield CheckpointFormat(
        name="neuron_bert",
        build="recipe_bert_dp.checkpoint:NeuronBertFormat",
        config=NeuronBert,
        patterns=("ckpt_*.pt",),
        model="bert_pretraining",
        summary="ckpt_<step>.pt of Neuron's and NVIDIA's BERT scripts, written by rank 0",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """BERT pre-training."""
    yield Recipe(
        name="bert_dp",
        summary="BERT pre-training, phases 1 and 2, on HDF5 shards",
        # Small enough for two cores: a narrow model learns most in minutes from many small steps, so rows are short.
        # Initial weights are larger than in a wide model, or attention would stay uniform for too long.
        model=Use(
            "bert_pretraining", size="custom", layers=2, hidden=128, heads=2, positions=64, vocabulary=4096,
            dropout=0.0, attention_dropout=0.0, init_std=0.06,
        ),
        data=Use("bert_hdf5", sequence=64, max_predictions=10, vocabulary=4096),
        train=Train(
            steps=1500,
            global_batch=32,
            micro_batch=32,
            lr=2e-3,
            schedule="linear",
            warmup_steps=100,
            eps=1e-6,
            precision="bf16_mixed",
            log_every=50,
            eval_every=250,
            eval_samples=128,
            save_every=500,
        ),
        variants=variants_of("recipe_bert_dp"),
        log_formats={"neuron": "recipe_bert_dp.console:line"},
        closing="recipe_bert_dp.closing:closing",
    )  # fmt: skip
