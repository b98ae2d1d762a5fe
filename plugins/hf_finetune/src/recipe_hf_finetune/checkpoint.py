"""The checkpoint format ``hf_trainer``: a folder of Hugging Face's Trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_core import NO_RUN, CheckpointError, Format, NoSettings, SaveContext
from recipe_core.checkpoint.formats.hf import Hf
from recipe_core.checkpoint.io.torch_save import read_tree
from recipe_core.files.documents import read_json

STATE = "trainer_state.json"
TRAINING = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth")
"""Patterns of the files from which the Trainer continues, in addition to the model and :data:`STATE`."""


class TrainerFormat(Format):
    """``model.safetensors``, ``config.json``, the tokenizer, and the training state: ``optimizer.pt``,
    ``scheduler.pt``, ``rng_state*.pth`` and ``trainer_state.json``.

    In a run, the context's ``writer`` is the Trainer, which writes all of these. Conversion reads and writes the model
    and the position in the schedule.
    """

    name = "hf_trainer"

    def __init__(self, config: NoSettings | None = None) -> None:
        self._hf = Hf()

    def save(self, path: Path, state: Mapping[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write into the empty folder ``path``; all ranks call it."""
        if context.writer is not None:
            context.writer(path)
            return
        self._hf.save(path, state)
        step = int((state.get("progress") or {}).get("step") or 0)
        (path / STATE).write_text(json.dumps({"global_step": step}) + "\n", encoding="utf-8")

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """Read the model, its text files and the position.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        folder = path if path.is_dir() else path.parent
        try:
            step = int(read_json(folder / STATE)["global_step"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise CheckpointError(f"{folder / STATE}: is missing or damaged ({error})") from error
        return {**self._hf.open(folder), "progress": {"step": step}}

    def require_training_state(self, folder: Path) -> None:
        """Require that every file from which the Trainer continues can be read; the Trainer would show a traceback.

        Raises:
            CheckpointError: a file is damaged, expands to more memory than its size, or names a forbidden global.
        """
        self.open(folder)
        for pattern in TRAINING:
            for file in sorted(folder.glob(pattern)):
                if not isinstance(read_tree(file, inert=lambda name: name.startswith(("numpy.", "_codecs."))), Mapping):
                    raise CheckpointError(f"{file}: damaged, it does not hold what the Trainer saves")

    def files(self, path: Path) -> list[Path]:
        """Files of the model; archives among them have checksums of their own."""
        return self._hf.files(path if path.is_dir() else path.parent)

    def detect(self, path: Path) -> bool:
        """True if ``path`` holds :data:`STATE`."""
        return (path / STATE).is_file()
