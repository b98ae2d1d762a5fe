"""Files of ``torch.save``, read and written tensor by tensor.

Such a file is an uncompressed ZIP archive: a pickle (``data.pkl``) in which each tensor refers to a storage, and a
record for each storage (https://pytorch.org/docs/stable/notes/serialization.html, "Serialized file format").
"""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor

from recipe_core.checkpoint.io import archive
from recipe_core.checkpoint.io.archive import ArchiveRecord, Buffer, FileSlice, read_bytes
from recipe_core.checkpoint.io.restricted_pickle import stand_in, unreadable
from recipe_core.checkpoint.lazy import Lazy, lazy, tree_map
from recipe_core.errors import CheckpointError, DiskFullError
from recipe_core.files import disk_error
from recipe_core.files.documents import require_bounded

ALIGNMENT = 64
"""Alignment of storages in bytes, as in torch.save."""
_MOST_VALUES = 10_000_000
"""Largest number of tensors, numbers and texts in a file; the optimizer of a model of 100,000 tensors has a million."""
_IN_OLD_FILES = ("argparse.Namespace", "numpy.dtype", "numpy.ndarray", "numpy.core.multiarray._reconstruct")
"""Globals, besides those of weights, in files of the old format, whose globals cannot be listed."""


def read_tree(path: Path, inert: Callable[[str], bool] | None = None) -> Any:
    """Read the pickle of a file, with a :class:`Lazy` for each tensor.

    Files from before PyTorch 1.6, which are not archives, and archives packed by other programs are read completely.

    Args:
        path: the file.
        inert: tells for which globals (``"argparse.Namespace"``) to use a
            :class:`recipe_core.checkpoint.io.restricted_pickle.Inert`, so that a file that names them can be read
            without importing them. None: for none.

    Raises:
        CheckpointError: the file cannot be read, is damaged, or names a global that weights do not need.
    """
    read_bytes(path, 0, 0)  # the file is readable: any later failure is damage
    try:
        if zipfile.is_zipfile(path):
            records = archive.records(path)
            # On the meta device a storage has no bytes, but their offset in the file.
            with _allow_inert(path, inert):
                tree = torch.load(path, map_location="meta", weights_only=True)
            _require_bounded(tree)
            if all(_within(leaf, records) for leaf in _tensors(tree)):
                return tree_map(lambda leaf: _leaf(leaf, records) if isinstance(leaf, Tensor) else leaf, tree)
            with path.open("rb") as file:
                archive.verify_checksums(file, path)
        with _allow_inert(path, inert):
            tree = torch.load(path, map_location="cpu", weights_only=True)
        _require_bounded(tree)
    except CheckpointError:
        raise
    except Exception as error:  # damage raises many types, and so does a forbidden global, which is not called
        raise CheckpointError(unreadable(path, error)) from error
    return tree_map(lambda leaf: lazy(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def _allow_inert(path: Path, inert: Callable[[str], bool] | None) -> AbstractContextManager[Any]:
    """Let torch.load create :class:`Inert` objects for the globals that ``inert`` permits."""
    if inert is None:
        return nullcontext()
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path) if zipfile.is_zipfile(path) else _IN_OLD_FILES
    return torch.serialization.safe_globals([(stand_in(name), name) for name in names if inert(name)])


def write_tree(path: Path | None, tree: Any) -> None:
    """Write ``tree``, whose leaves are tensors, :class:`Lazy` and plain values, with one tensor at a time in memory.

    A tensor that occurs twice is written once and read as one. If tensors are sharded, this is a collective: all ranks
    but one pass None for ``path``, take part in gathering and write nothing.

    Raises:
        DiskError: the disk is full or cannot be written.
    """
    unique: dict[int, Lazy] = {}

    def leaf(value: Any) -> Any:
        return unique.setdefault(id(value), lazy(value)) if isinstance(value, Tensor | Lazy) else value

    pickler = _Pickler()
    pickle_bytes = pickler.dumps(tree_map(leaf, tree))
    tensors = iter(pickler.tensors)
    try:
        if path is not None:
            write_archive(path, pickle_bytes, tensors)
    finally:
        for tensor in tensors:  # also after a failure, since the other ranks wait for the gathering
            if tensor.together:
                tensor.read()


def _require_bounded(tree: Any) -> None:
    """Refuse a pickle whose nested lists would expand without limit, before it is traversed."""
    require_bounded(tree, _children, _MOST_VALUES)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) and not isinstance(value, torch.Size) else ()


def _tensors(tree: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    tree_map(lambda leaf: tensors.append(leaf) if isinstance(leaf, Tensor) else None, tree)
    return tensors


def _within(tensor: Tensor, records: Mapping[int, ArchiveRecord]) -> bool:
    """True if a record of the file holds the tensor's bytes at the offset that PyTorch reports."""
    storage = tensor.untyped_storage()
    record = records.get(storage._checkpoint_offset or 0)  # 0 is where the first header is
    end = tensor.storage_offset() * tensor.itemsize + _extent(tensor)
    return record is not None and record.size == storage.nbytes() and end <= record.size


def _extent(tensor: Tensor) -> int:
    # Bytes from the tensor's first value to its last.
    steps = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.itemsize if tensor.numel() else 0


def _leaf(tensor: Tensor, records: Mapping[int, ArchiveRecord]) -> Lazy:
    record = records[tensor.untyped_storage()._checkpoint_offset or 0]
    begin = int(tensor.storage_offset()) * tensor.itemsize
    shape, stride, dtype, extent = tensor.shape, tensor.stride(), tensor.dtype, _extent(tensor)

    def read() -> Tensor:
        if not extent:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(record.read(begin, extent), dtype=dtype).as_strided(shape, stride)

    rows = partial(read_rows, record.read, begin, shape, dtype) if shape and tensor.is_contiguous() and extent else None
    return Lazy(shape, dtype, read, rows=rows)


def read_rows(
    read: Callable[[int, int], Buffer], begin: int, shape: torch.Size, dtype: torch.dtype, start: int, count: int
) -> Tensor:
    """Read ``count`` rows from ``start`` of a contiguous tensor whose values begin at byte ``begin``.

    ``read`` takes the first byte and the number of bytes.
    """
    wanted = torch.Size([count, *shape[1:]])
    size = shape[1:].numel() * dtype.itemsize
    if not count:
        return torch.empty(wanted, dtype=dtype)
    return torch.frombuffer(read(begin + start * size, count * size), dtype=dtype).reshape(wanted)


def embedded(path: Path, begin: int, length: int) -> Lazy:
    """Return a lazy tensor for an archive of torch.save inside a larger file.

    Raises:
        CheckpointError: it is damaged, or not a tensor.
    """
    try:
        records = archive.records(path, begin, length)
        with path.open("rb") as file:
            tensor = torch.load(
                cast("IO[bytes]", FileSlice(file, begin, length)), map_location="meta", weights_only=True
            )
    except CheckpointError:
        raise
    except Exception as error:  # damage raises many types
        raise CheckpointError(unreadable(path, error)) from error
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"{path}: expected a tensor at byte {begin:,}, found {type(tensor).__name__}")
    if _within(tensor, records):
        return _leaf(tensor, records)
    return Lazy(tensor.shape, tensor.dtype, partial(_loaded, path, begin, length))


def _loaded(path: Path, begin: int, length: int) -> Tensor:
    try:
        with path.open("rb") as file:
            part = FileSlice(file, begin, length)
            archive.verify_checksums(cast("BinaryIO", part), path)
            part.seek(0)
            tree: Tensor = torch.load(cast("IO[bytes]", part), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # damage raises many types
        raise CheckpointError(unreadable(path, error)) from error
    return tree


def write_archive(path: Path, pickle_bytes: bytes, tensors: Iterable[Lazy] = ()) -> None:
    """Write a pickle and its storages, in the order of their numbers.

    Raises:
        DiskError: the disk is full or cannot be written.
    """
    try:
        with path.open("wb") as file:
            writer = torch._C.PyTorchFileWriter(file, True, ALIGNMENT)
            try:
                _write_records(writer, {"data.pkl": pickle_bytes, **archive.written_as(path)}, tensors)
            except BaseException:
                with suppress(RuntimeError):  # else its destructor writes to a closed file, which aborts the process
                    writer.write_end_of_file()
                raise
            writer.write_end_of_file()
    except RuntimeError as error:  # PyTorch's writer hides the OSError of its stream
        cause = error.__context__
        if isinstance(cause, OSError):
            raise disk_error(cause, path) from error
        raise DiskFullError(f"{path}: cannot be written ({error}); is the disk full?") from error


def _write_records(writer: Any, first: Mapping[str, bytes], tensors: Iterable[Lazy]) -> None:
    records = {
        **first,
        ".format_version": b"1",
        ".storage_alignment": str(ALIGNMENT).encode(),
        "byteorder": sys.byteorder.encode(),
    }
    for name, data in records.items():
        writer.write_record(name, data, len(data))
    for number, tensor in enumerate(tensors):
        values = tensor.read().contiguous()
        if values.untyped_storage().nbytes() != values.nbytes:  # a part of a larger tensor
            values = values.clone()
        writer.write_record(f"data/{number}", values.untyped_storage(), values.nbytes)


@dataclass(frozen=True)
class _Storage:
    """Reference to the bytes of a tensor in the pickle."""

    kind: type
    key: str
    count: int


class _Pickler(pickle.Pickler):
    """Pickles a Lazy as torch.save pickles its tensor: a call of torch's rebuild function on a storage.

    :attr:`tensors` are the tensors in the order of their storages.
    """

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer, protocol=2)
        self.tensors: list[Lazy] = []

    def dumps(self, tree: Any) -> bytes:
        self.dump(tree)
        return self._buffer.getvalue()

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Lazy):
            return NotImplemented
        self.tensors.append(value)
        count = value.nbytes // value.dtype.itemsize
        storage = _Storage(_storage_class(value.dtype), str(len(self.tensors) - 1), count)
        strides = torch.empty(value.shape, device="meta").stride()
        return torch._utils._rebuild_tensor_v2, (storage, 0, tuple(value.shape), strides, False, OrderedDict())

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, _Storage):
            return ("storage", value.kind, value.key, "cpu", value.count)
        return None


def _storage_class(dtype: torch.dtype) -> type:
    name = torch.storage._dtype_to_storage_type_map().get(dtype)
    if name is None:
        raise CheckpointError(f"values of type {dtype} cannot be written by torch.save tensor by tensor")
    kind: type = getattr(torch, name)
    return kind
