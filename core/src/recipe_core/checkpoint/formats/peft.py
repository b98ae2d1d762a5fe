"""The checkpoint format ``peft``: the adapters of a model, as a folder for ``PeftModel.from_pretrained``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_core.checkpoint.formats.base import NO_RUN, Format, SaveContext
from recipe_core.checkpoint.io.safetensors import read_tensors, write_tensors
from recipe_core.checkpoint.lazy import lazy
from recipe_core.files.documents import read_text

TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


class Peft(Format):
    """``adapter_model.safetensors`` and ``adapter_config.json``, without the weights of the model itself."""

    name = "peft"

    def __init__(self, config: object = None) -> None:
        """``config`` has no settings."""

    def save(self, path: Path, state: Mapping[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state`` into the empty folder ``path``, in one process."""
        write_tensors(path / TENSORS, {name: lazy(tensor) for name, tensor in state["model"].items()})
        for name, text in state.get("files", {}).items():
            if name == CONFIG:  # a folder of adapters has no other texts
                (path / name).write_text(text, encoding="utf-8")

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """Return the adapters as lazy tensors."""
        config = path / CONFIG
        return {"model": read_tensors(path / TENSORS), "files": {CONFIG: read_text(config)} if config.is_file() else {}}

    def detect(self, path: Path) -> bool:
        """True if ``path`` is a folder of this format, or its file of tensors."""
        return path.name == TENSORS or (path / TENSORS).is_file()
