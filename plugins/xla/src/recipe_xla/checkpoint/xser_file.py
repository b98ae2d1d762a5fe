"""Files of torch_xla's serialization, read and written without it.

``X`` is a file of ``torch.save`` with a ``TensorReference`` for each tensor; the tensor with the number ``tid`` is in
``X.tensors/tensor_<tid>.pt``. neuronx-distributed adds ``X.info.pt``: shapes and dtypes by number.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from torch import Tensor

from recipe_core import CheckpointError, Lazy, lazy
from recipe_core.checkpoint.io import torch_save
from recipe_core.checkpoint.io.restricted_pickle import Inert
from recipe_core.checkpoint.lazy import tree_map

_MODULE, _CLASS = "torch_xla.utils.serialization", "TensorReference"


def tensors_of(path: Path) -> Path:
    """The folder of the tensors of the file ``path``."""
    return path.with_name(f"{path.name}.tensors")


def is_xser(path: Path) -> bool:
    """True if the file ``path`` has a folder of tensors."""
    return tensors_of(path).is_dir()


def read_xser(path: Path) -> Any:
    """Read a file, with a :class:`Lazy` for each tensor; only the headers of the tensors' files are read.

    Raises:
        CheckpointError: a file is missing or damaged, or names a forbidden global.
    """
    tree = torch_save.read_tree(path, lambda name: name == f"{_MODULE}.{_CLASS}")

    def leaf(value: Any) -> Any:
        return _tensor(path, value.state.get("tid")) if isinstance(value, Inert) else value

    return tree_map(leaf, tree)


def write_xser(path: Path, tree: Any, *, info: bool = False) -> None:
    """Write ``tree``, with one tensor at a time in memory. ``info``: write shapes and dtypes, as neuronx-distributed
    does.

    Raises:
        DiskError: the disk is full or cannot be written.
    """
    folder = tensors_of(path)
    folder.mkdir(parents=True)
    known: dict[int, dict[str, Any]] = {}

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor | Lazy):
            return value
        tensor, number = lazy(value), len(known)
        torch_save.write_tree(folder / f"tensor_{number}.pt", tensor)
        known[number] = {"dtype": tensor.dtype, "shape": tensor.shape}
        return TensorReference(number)

    references = tree_map(leaf, tree)
    torch_save.write_archive(path, _Pickler.dumped(references))
    if info:
        torch_save.write_tree(path.with_name(f"{path.name}.info.pt"), known)


def _tensor(path: Path, number: Any) -> Lazy:
    file = tensors_of(path) / f"tensor_{number}.pt"
    if not file.is_file():
        raise CheckpointError(f"{file}: missing, which {path.name} refers to; the checkpoint is damaged")
    tensor = torch_save.read_tree(file)
    if not isinstance(tensor, Lazy):
        raise CheckpointError(f"{file}: expected a tensor, found {type(tensor).__name__}")
    return tensor


class TensorReference:
    """A reference to a tensor, pickled under the name of torch_xla's class."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


class _Pickler(pickle._Pickler):
    """Writes the name of torch_xla's class without importing it, unlike the pickler in C."""

    @classmethod
    def dumped(cls, tree: Any) -> bytes:
        """The pickle of ``tree``."""
        buffer = io.BytesIO()
        cls(buffer, protocol=2).dump(tree)
        return buffer.getvalue()

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """The name of a class or function."""
        if obj is TensorReference:
            self.write(pickle.GLOBAL + f"{_MODULE}\n{_CLASS}\n".encode())  # type: ignore[attr-defined]
            self.memoize(obj)  # type: ignore[attr-defined]
        else:
            super().save_global(obj, name)  # type: ignore[misc]
