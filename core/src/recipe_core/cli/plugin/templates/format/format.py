"""The format: which file, and what stands in it.

``OneFile`` saves, loads and opens one file of ``torch.save``; here it gets the names of things in it. A format
of other files derives from ``recipe_core.Format`` instead: ``save``, ``load``, ``open`` and ``detect``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_core import CheckpointError, NoSettings, OneFile, SaveContext

FILE = "new_plugin.pt"
_KEYS = {"model": "weights", "optimizer": "moments", "progress": "position"}
"""Parts of a state, and what the file calls them."""


class OneTree(OneFile):
    """``new_plugin.pt``, with whole tensors."""

    name = "new_plugin_file"

    def __init__(self, config: NoSettings | None = None) -> None:
        """The format has no settings."""

    def file(self, state: Mapping[str, Any]) -> str:
        """Always the same."""
        return FILE

    def find(self, path: Path) -> Path | None:
        """The file in a folder, or itself."""
        file = path / FILE if path.is_dir() else path
        return file if file.name == FILE and file.is_file() else None

    def encode(self, state: Mapping[str, Any], context: SaveContext) -> dict[str, Any]:
        """The contents of the file. Tensors may be read later, one at a time: only move them around."""
        return {_KEYS.get(part, part): content for part, content in state.items()}

    def decode(self, tree: dict[str, Any], path: Path) -> dict[str, Any]:
        """The state that ``tree``, read from ``path``, stands for."""
        if _KEYS["model"] not in tree:
            raise CheckpointError(f"{path}: holds no {_KEYS['model']!r}, so that it is no {self.name}")
        parts = {theirs: ours for ours, theirs in _KEYS.items()}
        return {parts.get(part, part): content for part, content in tree.items()}
