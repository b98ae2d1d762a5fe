"""Files of torch_xla's serialization, read and written without it.

``X`` is a file of ``torch.save`` in which a ``TensorReference`` with the number ``tid`` stands for each tensor; the
tensors lie one by one in ``X.tensors/tensor_<tid>.pt``. neuronx-distributed adds ``X.info.pt``: shapes and types by
number.
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
from recipe_core.checkpoint.lazy import mapped

_MODULE, _CLASS = "torch_xla.utils.serialization", "TensorReference"


def tensors_of(path: Path) -> Path:
    """The folder of the tensors of the file ``path``."""
    return path.with_name(f"{path.name}.tensors")


def is_xser(path: Path) -> bool:
    """True if the tensors of a file lie beside it."""
    return tensors_of(path).is_dir()


def read_xser(path: Path) -> Any:
    """Read a file with a :class:`Lazy` for each tensor; of the tensors' files only the headers are read.

    Raises:
        CheckpointError: a file is missing or damaged, or names a forbidden global.
    """
    tree = torch_save.read_tree(path, lambda name: name == f"{_MODULE}.{_CLASS}")

    def leaf(value: Any) -> Any:
        return _tensor(path, value.state.get("tid")) if isinstance(value, Inert) else value

    return mapped(tree, leaf)


def write_xser(path: Path, tree: Any, *, info: bool = False) -> None:
    """Write ``tree``; one tensor at a time is in memory. ``info``: with shapes and types, as neuronx-distributed.

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

    references = mapped(tree, leaf)
    torch_save.write_archive(path, _Pickler.dumped(references))
    if info:
        torch_save.write_tree(path.with_name(f"{path.name}.info.pt"), known)


def _tensor(path: Path, number: Any) -> Lazy:
    file = tensors_of(path) / f"tensor_{number}.pt"
    if not file.is_file():
        raise CheckpointError(f"{file}: missing, which {path.name} refers to; the checkpoint is damaged")
    found = torch_save.read_tree(file)
    if not isinstance(found, Lazy):
        raise CheckpointError(f"{file}: expected a tensor, found {type(found).__name__}")
    return found


class TensorReference:
    """Stands in a pickle for a tensor; it is written under the name of torch_xla's class."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


class _Pickler(pickle._Pickler):
    """Names torch_xla's class without importing it, which C's pickler would."""

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
