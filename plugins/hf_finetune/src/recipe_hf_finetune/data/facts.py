"""Number and length of samples before a run. No torch here."""

from __future__ import annotations

from recipe_core import DataFacts, RecipeError
from recipe_core.files import home
from recipe_hf_finetune.data.splits import load
from recipe_hf_finetune.data.tasks import GLUE
from recipe_hf_finetune.settings import TextClassification


def facts(config: TextClassification) -> DataFacts:
    """Number and length of samples. Files are read and checked row by row; nothing is downloaded from the hub."""
    if config.embedded:
        return DataFacts(sequence=config.max_length, train_samples=config.pairs)
    if not (config.folder or config.train):
        return DataFacts(sequence=config.max_length, train_samples=GLUE[config.task].train_samples)
    try:
        corpus = load(config, home())
    except RecipeError as error:
        return DataFacts(sequence=config.max_length, problems=(str(error),))
    return DataFacts(sequence=config.max_length, train_samples=len(corpus.splits["train"]))
