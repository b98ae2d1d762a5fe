"""The checkpoint format ``single``: everything in one file that ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from recipe_core.errors import CheckpointError, DiskError
from recipe_core.mismatch import mismatch
from recipe_core.specs import NoSettings

FILE = "checkpoint.pt"


class Single:
    """One file ``checkpoint.pt`` with whole tensors, written by rank 0: easy to hand on, not for large models."""

    name = "single"

    def __init__(self, config: NoSettings | None = None) -> None:
        """It has no settings."""

    def save(self, path: Path, state: dict[str, Any]) -> None:
        """Write ``state`` into the empty folder ``path``; all ranks call it, since a sharded tensor is gathered.

        Raises:
            DiskError: the disk is full or cannot be written.
        """
        whole = _whole(state)
        if not dist.is_initialized() or dist.get_rank() == 0:
            try:
                torch.save(whole, path / FILE)
            except RuntimeError as error:  # PyTorch's zip writer hides why its stream cannot be written
                cause = error.__context__
                if isinstance(cause, OSError):
                    raise DiskError(f"{path}: cannot be written ({cause.strerror or cause})") from error
                raise DiskError(f"{path}: cannot be written ({error}); is the disk full?") from error

    def load(self, path: Path, state: dict[str, Any]) -> None:
        """Fill ``state``: tensors in place, plain values replaced; every rank reads the file.

        Raises:
            CheckpointError: the file is damaged, holds more than weights, or has other names, shapes or dtypes.
        """
        saved = _read(path / FILE)
        if text := mismatch(_described(saved), dict(_flat(state))):
            raise CheckpointError(f"{path}: {text}")
        _fill(state, saved)

    def detect(self, path: Path) -> bool:
        """Whether ``path`` looks like a checkpoint of this format."""
        return (path / FILE).is_file()

    def contents(self, path: Path) -> dict[str, TensorStorageMetadata | BytesStorageMetadata]:
        """What it holds, by flat name (``"model.blocks.0.bias"``).

        Raises:
            CheckpointError: the file is damaged, or holds more than weights.
        """
        return _described(_read(path / FILE))


def _whole(value: Any) -> Any:
    """Tensors unsharded and on the CPU."""
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_whole(item) for item in value)
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _read(path: Path) -> dict[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # damage shows in many ways; so does a forbidden global, which is not run
        raise CheckpointError(f"{path}: refused, damaged or no weights ({str(error).splitlines()[0]})") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected a dict of tensors and plain values, found {type(found).__name__}")
    return found


def _flat(state: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{parent}{key}.")
        else:
            yield f"{parent}{key}", value


def _described(state: Mapping[str, Any]) -> dict[str, TensorStorageMetadata | BytesStorageMetadata]:
    """In the words of DCP's metadata, so that one function tells what does not fit."""
    return {
        name: TensorStorageMetadata(TensorProperties(dtype=value.dtype), value.shape, [])
        if isinstance(value, Tensor)
        else BytesStorageMetadata()
        for name, value in _flat(state)
    }


def _fill(state: dict[str, Any], saved: Mapping[str, Any]) -> None:
    for key, value in state.items():
        if isinstance(value, dict) and value:
            _fill(value, saved[key])
        elif isinstance(value, DTensor):
            from torch.distributed.tensor import distribute_tensor

            value.copy_(distribute_tensor(saved[key].to(value.device), value.device_mesh, value.placements))
        elif isinstance(value, Tensor):
            value.copy_(saved[key])
        else:
            state[key] = saved[key]
