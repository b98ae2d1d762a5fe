"""The code behind frozen_place.py. Never edit this file: later cores must run it as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frozen_place import Boxed, Plain
from torch import nn

from recipe_core import CheckpointError, OneFile, Parallel, Run, SaveContext, materialise


def build(module: nn.Module, config: Plain, run: Run) -> Parallel:
    materialise(module, run.device)
    return Parallel(module)


class Box(OneFile):
    name = "frozen_box"

    def __init__(self, config: Boxed) -> None:
        self.stem = config.stem

    def file(self, state: Mapping[str, Any]) -> str:
        return f"{self.stem}.frozen_box"

    def find(self, path: Path) -> Path | None:
        files = sorted(path.glob("*.frozen_box")) if path.is_dir() else [path]
        return files[0] if files and files[0].suffix == ".frozen_box" and files[0].is_file() else None

    def encode(self, state: Mapping[str, Any], context: SaveContext) -> dict[str, Any]:
        return {"box": dict(state)}

    def decode(self, tree: dict[str, Any], path: Path) -> dict[str, Any]:
        if "box" not in tree:
            raise CheckpointError(f"{path}: expected a box")
        state: dict[str, Any] = tree["box"]
        return state
