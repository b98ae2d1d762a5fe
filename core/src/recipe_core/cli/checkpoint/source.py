"""The model that ``recipe generate`` and ``eval`` use. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.options import LocalPath, join, load_plugins
from recipe_core.errors import ConfigError

if TYPE_CHECKING:
    from recipe_core.checkpoint.match.trained import TrainedModel
    from recipe_core.engine.protocol import Engine
    from recipe_core.hooks.registry import Registry
    from recipe_core.hooks.specs import Model

_OF_RUNS = ("job.yaml", "metrics.jsonl", "results.json")
"""Files of a run folder that hold no weights."""
source_options = join(
    click.option("--accept", metavar="WORD", help="Use data or a tokenizer that differ, as a message said."),
    click.option("--tokenizer", type=LocalPath(), metavar="PATH", help="Its tokenizer: a file or a folder."),
    click.option("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda, ... (default: auto)."),
    click.option("--from", "form", metavar="FORMAT", help="Its format, where its files don't tell."),
    click.option("--recipe", metavar="NAME[:VARIANT]", help="A recipe of its model, where it doesn't tell."),
)
"""The options that describe a checkpoint where its files do not, and the device."""


@contextmanager
def engine(device: str) -> Iterator[Engine]:
    """Start PyTorch's own engine on ``device``, for one process.

    Raises:
        ConfigError: the device is not available.
    """
    from recipe_core.engine import protocol
    from recipe_core.hooks.specs import load
    from recipe_core.hooks.train import Train

    load("recipe_core.engine.memory:return_freed_memory", "the core")()
    try:
        built = protocol.start(Train(device=device))
    except ConfigError as error:
        raise ConfigError(str(error).replace("train.device", "--device")) from error
    with built as started:
        yield started


def require_exists(path: Path) -> None:
    """Check that ``path`` exists and may hold a checkpoint, before PyTorch is imported for it.

    Raises:
        CheckpointError: it does not.
    """
    from recipe_core.errors import CheckpointError
    from recipe_core.settings.sections import split_name

    expected = "expected a run folder or a checkpoint"
    if not path.exists():
        if split_name(str(path))[0] in load_plugins().names("recipe"):
            expected = f"that is a recipe: train it (`recipe run {path} --out FOLDER`), and give the folder of the run"
        raise CheckpointError(f"{path}: there is no such file or folder; {expected}")
    if path.is_dir() and not any(path.iterdir()):
        raise CheckpointError(f"{path}: the folder is empty; {expected}")
    if path.is_file() and path.name in _OF_RUNS:
        raise CheckpointError(f"{path}: is a file of a run without weights; give the folder of the run: {path.parent}")


def model_at(registry: Registry, path: Path, engine: Engine, options: Mapping[str, Any]) -> TrainedModel:
    """Load the model of the checkpoint at ``path``; print damaged newer checkpoints that are passed over.

    Raises:
        CheckpointError: there is no complete checkpoint, or its model is not known.
    """
    from recipe_core.hooks.specs import load

    build = load("recipe_core.checkpoint.match.trained:trained_model", "the core")
    trained: TrainedModel = build(registry, path, engine.device, options["form"], options["recipe"])
    for text in trained.source.passed_over:
        click.echo(f"recipe: passed over: {text}", err=True)
    if unchecked := trained.source.unchecked():
        click.echo(f"recipe: not checked: {unchecked}", err=True)
    return trained


def owner(model: Model, field: str) -> str:
    """Return the code that a model names in ``field``, for messages."""
    return f"model {model.name!r}: {getattr(model, field)!r}"
