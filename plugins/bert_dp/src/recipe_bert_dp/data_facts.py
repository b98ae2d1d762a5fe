"""What is known about the shards from their heads, without torch."""

from __future__ import annotations

from pathlib import Path

from recipe_bert_dp import shards
from recipe_bert_dp.config import BertHdf5
from recipe_bert_dp.shards import Shape
from recipe_core.errors import DataError
from recipe_core.specs import DataFacts


def facts(config: BertHdf5) -> DataFacts:
    """Look at the heads of all shards, and gather what is wrong with any of them."""
    samples: int | None = None
    problems: list[str] = []
    try:
        samples = sum(shape.rows for shape in check(config, "training").values())
    except DataError as error:
        problems.append(str(error))
    return DataFacts(sequence=config.sequence, train_samples=samples, problems=tuple(problems))


def check(config: BertHdf5, kind: str) -> dict[Path, Shape]:
    """The shards of a kind (``training`` or ``test``) that have rows; none at all is an error for training only.

    Raises:
        DataError: a shard is missing, damaged, or does not fit the settings or the other shards.
    """
    if not config.files:
        raise DataError("data.files: expected a folder with HDF5 shards; make one with recipe prepare bert_hdf5")
    found: dict[Path, Shape] = {}
    problems = []
    for path in shards.find(config.files):
        if shards.kind_of(path) != kind:
            continue
        try:
            with shards.opened(path) as file:
                shape = shards.shape_of(file, path)
        except DataError as error:
            problems.append(str(error))
            continue
        first = next(iter(found.values()), shape)
        if problem := _misfit(config, shape, first):
            problems.append(f"{path}: {problem}")
        elif shape.rows:
            found[path] = shape
    if kind == "training" and not found and not problems:
        problems.append(f"data.files: no training sample in {', '.join(config.files)}; name other shards")
    if problems:
        raise DataError("\n".join(problems[:20]))
    return found


def _misfit(config: BertHdf5, shape: Shape, first: Shape) -> str:
    """Why a shard cannot be read with these settings, and with the first of the others."""
    most = config.max_predictions + shape.slots
    if shape.sequence != config.sequence:
        return f"has {shape.sequence} tokens a row, but data.sequence={config.sequence}; set it to {shape.sequence}"
    if not shape.packed and shape.predictions > most:
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
