"""GLUE from the hub, with the package datasets. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_core import DataError
from recipe_hf_finetune.data.files import Row

REPOSITORY = "nyu-mll/glue"
"""Repository of GLUE as plain tables, without a loading script."""
_SPLITS = {"validation": "validation", "validation_matched": "validation", "validation_mismatched": "mismatched"}


def glue(task: str) -> Iterator[tuple[str, list[tuple[int, Row]]]]:
    """Name and numbered rows of each labelled split of ``task``; ``mismatched`` is MNLI's second validation split.

    Raises:
        DataError: the package datasets is missing, or the hub cannot be reached.
    """
    advice = (
        "name files instead: data.folder=FOLDER with train.tsv and dev.tsv, or data.train and data.validation (.tsv, "
        ".csv, .jsonl, .parquet)"
    )
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(
            f"data.task: {task} comes from a hub, which needs the package datasets; pip install "
            f"'recipe-hf-finetune[hub]', or {advice}"
        ) from error
    try:
        splits = load_dataset(REPOSITORY, task)
    except Exception as error:  # a dozen types, from four packages, for any failed download
        text = " ".join(str(error).split())[:200]
        raise DataError(f"data.task: {task} cannot be had from the hub ({REPOSITORY}: {text}); {advice}") from error
    for name, rows in splits.items():
        if name == "train" or name in _SPLITS:
            yield _SPLITS.get(name, name), list(enumerate(rows, 1))
