"""Number and shape of samples from the headers of shards. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from recipe_bert_dp.data import heads, shards
from recipe_bert_dp.data.shards import ShardShape
from recipe_bert_dp.settings import BertHdf5
from recipe_core import DataError, DataFacts

MOST_PROBLEMS = 20


def facts(config: BertHdf5) -> DataFacts:
    """Read the headers of all shards, and collect their problems; the embedded corpus is not built."""
    if not config.files:
        return DataFacts(sequence=config.sequence, vocabulary=config.vocabulary)
    samples = vocabulary = None
    problems: list[str] = []
    try:
        shapes = check(config, "training")
        samples, vocabulary = sum(shape.rows for shape in shapes.values()), _vocabulary(shapes)
    except DataError as error:
        problems += re.split(r"\n(?! )", str(error))  # indented lines continue the message before
    return DataFacts(
        sequence=config.sequence,
        vocabulary=vocabulary,
        train_samples=samples,
        valid_samples=_valid_samples(config),
        problems=tuple(problems),
    )


def _valid_samples(config: BertHdf5) -> int | None:
    # None where a shard is invalid: only a run that evaluates reads it, and reports it then.
    try:
        return sum(shape.rows for shape in check(config, "test").values()) or None
    except DataError:
        return None


def check(config: BertHdf5, kind: str) -> dict[Path, ShardShape]:
    """Shapes of the non-empty shards of a kind (``training`` or ``test``); having none is an error for training only.

    Raises:
        DataError: a shard is missing, damaged, or does not fit the settings or the other shards.
    """
    shapes: dict[Path, ShardShape] = {}
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


def _vocabulary(paths: Iterable[Path]) -> int | None:
    path = shards.vocabulary_of(paths)
    return None if path is None else len(path.read_text(encoding="utf-8", errors="replace").splitlines())


def _misfit(config: BertHdf5, shape: ShardShape, first: ShardShape) -> str:
    # Reason why a shard cannot be read with these settings and together with the shard of shape ``first``.
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
    if shape != ShardShape(shape.rows, first.sequence, first.predictions, first.slots):
        return (
            f"has {shape.predictions} predictions and {shape.slots} samples a row at most, another shard has "
            f"{first.predictions} and {first.slots}; read them in runs of their own"
        )
    return ""
