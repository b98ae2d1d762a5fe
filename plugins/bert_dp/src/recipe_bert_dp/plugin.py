"""What this plugin adds. Start here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recipe_bert_dp.config import BertHdf5, PrepareHdf5, PreparePacked
from recipe_bert_dp.model_config import BertPretraining
from recipe_core import Dataset, Model, hookimpl

_READ: dict[str, Any] = {
    "build": "recipe_bert_dp.data:build",
    "facts": "recipe_bert_dp.data_facts:facts",
    "config": BertHdf5,
    "files": "recipe_bert_dp.inspection:BertFiles",
}
"""One reader takes both kinds of shards; it tells them apart by what is in them."""


@hookimpl
def register_models() -> Iterable[Model]:
    """BERT with the heads of its pre-training."""
    yield Model(
        name="bert_pretraining",
        build="recipe_bert_dp.model:build",
        facts="recipe_bert_dp.model_facts:facts",
        config=BertPretraining,
        blocks="bert.encoder.layer.*",
        summary="BERT with masked words and next sentence, as Hugging Face's BertForPreTraining",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """Shards of NVIDIA's and Neuron's BERT, one sample a row, and Habana's, several a row."""
    yield Dataset(
        name="bert_hdf5",
        prepare="recipe_bert_dp.prepare:prepare",
        prepare_config=PrepareHdf5,
        summary="BERT's HDF5 shards: masked words and next sentence",
        **_READ,
    )
    yield Dataset(
        name="bert_packed",
        prepare="recipe_bert_dp.pack:prepare",
        prepare_config=PreparePacked,
        summary="the same with several samples packed into each row",
        **_READ,
    )
