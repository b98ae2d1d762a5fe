"""Facts about the shards from their headers, without torch."""

from __future__ import annotations

import re
from pathlib import Path

from recipe_bert_dp.data import heads, shards
from recipe_bert_dp.data.shards import Shape
from recipe_bert_dp.settings import BertHdf5
from recipe_core import DataError, DataFacts

MOST_PROBLEMS = 20


def facts(config: BertHdf5) -> DataFacts:
    """Look at the heads of all shards, and gather what is wrong with any of them; the embedded corpus is not made."""
    if not config.files:
        return DataFacts(sequence=config.sequence, vocabulary=config.vocabulary)
    samples = vocabulary = None
    problems: list[str] = []
    try:
        found = check(config, "training")
        samples, vocabulary = sum(shape.rows for shape in found.values()), _vocabulary(found)
    except DataError as error:
        problems += re.split(r"\n(?! )", str(error))  # lines that are indented belong to the one before
    return DataFacts(
        sequence=config.sequence,
        vocabulary=vocabulary,
        train_samples=samples,
        valid_samples=_valid_samples(config),
        problems=tuple(problems),
    )


def _valid_samples(config: BertHdf5) -> int | None:
    """Rows for validation; None without any, and where a shard is wrong: only a run that evaluates reads them."""
    try:
        return sum(shape.rows for shape in check(config, "test").values()) or None
    except DataError:
        return None


def check(config: BertHdf5, kind: str) -> dict[Path, Shape]:
    """The shards of a kind (``training`` or ``test``) that have rows; none at all is an error for training only.

    Raises:
        DataError: a shard is missing, damaged, or does not fit the settings or the other shards.
    """
    shapes: dict[Path, Shape] = {}
    problems = []
    paths = (path for path in shards.find(config.files) if shards.kind_of(path) == kind)
    for path, shape in heads.shapes(paths).items():
        if isinstance(shape, DataError):
            problems.append(str(shape))
            continue
        first = next(iter(shapes.values()), shape)
        if problem := _misfit(config, shape, first):
            problems.append(f"{path}: {problem}")
        elif shape.rows:
            shapes[path] = shape
    if kind == "training" and not shapes and not problems:
        problems.append(f"data.files: no training sample in {', '.join(config.files)}; name other shards")
    if len(problems) > MOST_PROBLEMS:
        problems[MOST_PROBLEMS:] = [f"data.files: and {len(problems) - MOST_PROBLEMS:,} more shards with a problem"]
    if problems:
        raise DataError("\n".join(problems))
    return shapes


def _vocabulary(found: dict[Path, Shape]) -> int | None:
    """Entries of the vocab.txt that lies near the shards, if there is one."""
    path = shards.vocabulary_beside(found)
    return None if path is None else len(path.read_text(encoding="utf-8", errors="replace").splitlines())


def _misfit(config: BertHdf5, shape: Shape, first: Shape) -> str:
    """Why a shard cannot be read with these settings, and with the first of the others."""
    if config.packed is False and shape.packed:
        return "has several samples a row, but data.packed=false; name the shards that it was packed from"
    if config.packed and not shape.packed:
        return (
            "has one sample a row, but data.packed=true; make packed shards with `recipe prepare bert_packed "
            "inputs=FOLDER output=PACKED` and name these, or set data.packed=null"
        )
    if shape.sequence != config.sequence:
        return f"has {shape.sequence} tokens a row, but data.sequence={config.sequence}; set it to {shape.sequence}"
    if not shape.packed and shape.predictions > config.max_predictions:
        return (
            f"has {shape.predictions} predictions a row, but data.max_predictions={config.max_predictions}; set it to "
            f"{shape.predictions}"
        )
    if shape != Shape(shape.rows, first.sequence, first.predictions, first.slots):
        return (
            f"has {shape.predictions} predictions and {shape.slots} samples a row at most, another shard has "
            f"{first.predictions} and {first.slots}; read them in runs of their own"
        )
    return ""
