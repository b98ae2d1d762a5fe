"""A recipe whose parts other plugins register: model, data and log line are named, and belong to bert_dp."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import Recipe, Train, Use, hookimpl, variants_of


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """Tensor-parallel BERT pre-training."""
    yield Recipe(
        name="bert_tp",
        summary="BERT pre-training, phase 1, tensor parallel",
        # The settings of bert_dp's default run, so that the curves are comparable.
        model=Use(
            "bert_pretraining", size="custom", layers=2, hidden=128, heads=2, positions=64, vocabulary=4096,
            dropout=0.0, attention_dropout=0.0, init_std=0.06,
        ),
        data=Use("bert_hdf5", sequence=64, max_predictions=10, vocabulary=4096),
        layout=Use("tp", tp=2),
        processes=2,
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
        variants=variants_of("recipe_bert_tp"),
        log_formats={"neuron": "recipe_bert_dp.console:line"},
        closing="recipe_bert_dp.closing:closing",
    )  # fmt: skip
