"""Resolve ``model.source`` to a folder or name that Hugging Face's ``from_pretrained`` reads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from recipe_core import CheckpointError, ConfigError
from recipe_core.checkpoint.manifest import NAME, Manifest
from recipe_core.data.identity import recorded_identity
from recipe_core.train.start.pretrained import checkpoint_at, has_adapters, to_hugging_face, trained, unchecked
from recipe_hf_finetune.settings import SequenceClassifier

RECIPE = "recipe:"
CONVERTED = "hf_saved_model"
"""Folder of the converted checkpoint in the run folder, as in the published recipe."""
_TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)


def run_first(config: SequenceClassifier, cache: Path, stopped: Callable[[], object]) -> tuple[str | None, bool]:
    """Run the recipe that ``source`` names, if any.

    Every process of a machine calls it before the process group exists: one trains, the others wait.

    Returns:
        The resolved source, and False if ``stopped`` interrupted the recipe.
    """
    if config.source is None or not config.source.startswith(RECIPE):
        return config.source, True
    checkpoint = trained(config.source.removeprefix(RECIPE), cache, stopped)
    return (None, False) if checkpoint is None else (str(checkpoint), True)


def ready(source: str) -> str | None:
    """``source`` for ``from_pretrained``: a folder of Hugging Face, or a name on the hub; None if it needs
    conversion."""
    path = Path(source)
    if not path.exists():
        return source
    for folder in (path, path / "model"):  # the second is written by a run of hf_finetune
        if (folder / "config.json").is_file():
            # from_pretrained would leave adapters out
            return None if (folder / "job.yaml").is_file() and has_adapters(folder) else str(folder)
    return None


def require_intact(place: str) -> None:
    """Verify the checksums of a folder against its manifest; without one, print that nothing was checked.

    Raises:
        CheckpointError: a file is missing, or has other bytes.
    """
    folder = Path(place)
    if (folder / NAME).is_file():
        manifest = Manifest.read(folder)
        if problems := manifest.wrong_hashes(folder, manifest.files):
            raise CheckpointError(f"model.source: {folder}: {'; '.join(problems)}; copy it again, or make it again")
        return
    if text := unchecked(folder):
        print(f"recipe: not checked: {text}", file=sys.stderr, flush=True)


def convert(config: SequenceClassifier, source: str, out: Path) -> None:
    """Convert the checkpoint ``source`` to ``out/hf_saved_model``, unless that folder exists.

    Raises:
        CheckpointError: the checkpoint is damaged, or does not record its model.
        DiskError: ``out`` cannot be written.
    """
    if (out / CONVERTED).is_dir():
        return
    try:
        to_hugging_face(Path(source), out / CONVERTED, config.recipe)
    except (CheckpointError, ConfigError) as error:
        text = str(error).replace("--recipe ", "model.recipe=")
        raise type(error)(f"model.source: {text}") from error


def has_tokenizer(place: str) -> bool:
    """True if the folder of the weights has a tokenizer; assumed for a name on the hub."""
    path = Path(place)
    return not path.is_dir() or any((path / name).is_file() for name in _TOKENIZERS)


def has_own_tokenizer(place: str) -> bool:
    """True if the tokenizer in the folder of the weights is the one they were trained with.

    For a checkpoint that records none, `recipe convert` assumes the recipe's.
    """
    folder = Path(place)
    written_by_recipe = (folder / "job.yaml").is_file()
    return has_tokenizer(place) and (
        not written_by_recipe or "tokenizer" in recorded_identity(checkpoint_at(folder).job)
    )
