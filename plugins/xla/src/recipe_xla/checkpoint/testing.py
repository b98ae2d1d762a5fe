"""Files of torch_xla's serialization as torch_xla saves and loads them, without torch_xla; for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from recipe_xla.checkpoint.xser_file import TensorReference


@contextmanager
def _torch_xla() -> Iterator[None]:
    # A package torch_xla with only the class that pickle looks up.
    name = "torch_xla.utils.serialization"
    made_up = {part: ModuleType(part) for part in ("torch_xla", "torch_xla.utils", name)}
    made_up[name].TensorReference = TensorReference  # type: ignore[attr-defined]
    before = {part: sys.modules.get(part) for part in made_up}, TensorReference.__module__
    sys.modules.update(made_up)
    TensorReference.__module__ = name
    try:
        yield
    finally:
        TensorReference.__module__ = before[1]
        for part, module in before[0].items():
            sys.modules.pop(part) if module is None else sys.modules.update({part: module})


def xser_load(path: Path) -> Any:
    """Load as torch_xla does: the tree, then each tensor by its number."""
    import torch

    with _torch_xla():
        tree = torch.load(path, weights_only=False)

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: whole(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [whole(inner) for inner in value]
        if isinstance(value, TensorReference):
            return torch.load(path.with_name(f"{path.name}.tensors") / f"tensor_{value.tid}.pt")
        return value

    return whole(tree)


def xser_save(tree: Any, path: Path) -> None:
    """Save as torch_xla does."""
    import torch

    folder = path.with_name(f"{path.name}.tensors")
    folder.mkdir(parents=True)
    count = 0

    def reference(value: Any) -> Any:
        nonlocal count
        if isinstance(value, dict):
            return {key: reference(inner) for key, inner in value.items()}
        if isinstance(value, torch.Tensor):
            torch.save(value, folder / f"tensor_{count}.pt")
            count += 1
            return TensorReference(count - 1)
        return value

    with _torch_xla():
        torch.save(reference(tree), path)
