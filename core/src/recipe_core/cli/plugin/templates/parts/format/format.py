"""The format: its file and its contents.

``OneFile`` saves, loads and opens one file of ``torch.save``; this class defines the names in it. A format of
other files derives from ``recipe_core.Format`` instead: ``save``, ``load``, ``open`` and ``detect``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_core import CheckpointError, NoSettings, OneFile, SaveContext

FILE = "new_plugin.pt"
_KEYS = {"model": "weights", "optimizer": "moments", "progress": "position"}
"""Parts of a state, and their names in the file."""


class OneTree(OneFile):
    """``new_plugin.pt``, with whole tensors."""

    name = "new_plugin_file"

    def __init__(self, config: NoSettings | None = None) -> None:
        """The format has no settings."""

    def file(self, state: Mapping[str, Any]) -> str:
        """Return the name of the file."""
        return FILE

    def find(self, path: Path) -> Path | None:
        """Return the file in a folder, or the file itself."""
        file = path / FILE if path.is_dir() else path
        return file if file.name == FILE and file.is_file() else None

    def encode(self, state: Mapping[str, Any], context: SaveContext) -> dict[str, Any]:
        """Return the contents of the file. Tensors may be loaded later: move them, but do not read them."""
        return {_KEYS.get(part, part): content for part, content in state.items()}

    def decode(self, tree: dict[str, Any], path: Path) -> dict[str, Any]:
        """Return the state for ``tree``, which was read from ``path``."""
        if _KEYS["model"] not in tree:
            raise CheckpointError(f"{path}: holds no {_KEYS['model']!r}, so that it is no {self.name}")
        parts = {key: part for part, key in _KEYS.items()}
        return {parts.get(part, part): content for part, content in tree.items()}
