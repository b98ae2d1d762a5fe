"""Metadata of torch.distributed.checkpoint, read without trust and compared with the files that it names.

It is a pickle of DCP's dataclasses. They are read as the classes of this file, which have the same attributes and no
code, so that reading does not wait for DCP's import, most of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recipe_core.checkpoint.io.restricted_pickle import read_pickle, stand_in
from recipe_core.errors import CheckpointError

METADATA = ".metadata"
_MOST_DEPTH = 64
"""Most keys of an entry in the nested state."""
_MOST_GAPS = 1000
"""Most elements of a list without an entry (empty dicts); the place of one entry could request any number of them."""


@dataclass
class TensorProperties:
    """Properties of a tensor other than its shape."""

    dtype: torch.dtype

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = state[0]  # deprecated ones follow: layout, requires_grad, memory format, pinned


@dataclass
class ChunkStorageMetadata:
    """A piece of a tensor: its place in the whole, and its shape."""

    offsets: torch.Size
    sizes: torch.Size


@dataclass
class TensorStorageMetadata:
    """A tensor and its pieces."""

    properties: TensorProperties
    size: torch.Size
    chunks: list[ChunkStorageMetadata]


@dataclass
class BytesStorageMetadata:
    """A plain value."""


@dataclass(frozen=True)
class MetadataIndex:
    """Names a plain value, or a piece of a tensor by its offset."""

    fqn: str
    offset: torch.Size | None = None
    index: int | None = field(default=None, compare=False)


@dataclass
class StorageInfo:
    """Where in which file a piece or a plain value is stored, in bytes."""

    relative_path: str
    offset: int
    length: int


@dataclass
class Metadata:
    """The content of a checkpoint."""

    state_dict_metadata: dict[str, TensorStorageMetadata | BytesStorageMetadata]
    storage_data: dict[MetadataIndex, StorageInfo]
    planner_data: dict[str, tuple[str | int, ...]] | None = None
    """Keys of each entry in the nested state; an int is an index of a list."""


_DCP = "torch.distributed.checkpoint"
_CLASSES = (
    Metadata, TensorStorageMetadata, BytesStorageMetadata, ChunkStorageMetadata, TensorProperties, MetadataIndex,
)  # fmt: skip
_IGNORED = {
    (f"{_DCP}.metadata", "StorageMeta"),
    (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
    *((module, f"{kind}Path") for module in ("pathlib", "pathlib._local") for kind in ("Posix", "Windows")),
}
_PERMITTED: dict[tuple[str, str], Any] = {
    **{(f"{_DCP}.metadata", cls.__name__): cls for cls in _CLASSES},
    (f"{_DCP}.filesystem", "_StorageInfo"): StorageInfo,
    ("torch", "Size"): torch.Size,
    **{(module, name): stand_in(f"{module}.{name}") for module, name in _IGNORED},
}


def _find(module: str, name: str) -> Any:
    if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
        return dtype
    return _PERMITTED.get((module, name))


def read_metadata(folder: Path) -> Metadata:
    """Read the metadata of a checkpoint, and require that every file it names exists and is long enough.

    Raises:
        CheckpointError: it is missing, damaged, incomplete, or names a forbidden global.
    """
    path = folder / METADATA
    metadata = read_pickle(path, _find)
    if not isinstance(metadata, Metadata) or not isinstance(getattr(metadata, "storage_data", None), dict):
        raise CheckpointError(f"{path}: damaged, it holds no metadata of torch.distributed.checkpoint")
    try:
        _require_types(metadata)
        _require_consistent(path, metadata)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error})") from error
    return metadata


def _require_types(metadata: Metadata) -> None:
    """Check the type of every attribute: an unpickled object has whatever attributes the pickle sets."""
    _require(isinstance(metadata.state_dict_metadata, dict), "the list of tensors is no dict")
    for index, info in metadata.storage_data.items():
        _require(isinstance(index.fqn, str) and isinstance(info.relative_path, str), "a name is no text")
        _require(index.offset is None or _sizes(index.offset), f"{index.fqn} has no place")
        _require(_sizes((info.offset, info.length)), f"{index.fqn} is stored at no place of {info.relative_path}")
    for name, entry in metadata.state_dict_metadata.items():
        _require(isinstance(name, str), "a name is no text")
        if not isinstance(entry, BytesStorageMetadata):
            _require(isinstance(entry, TensorStorageMetadata), f"{name} is neither tensor nor bytes")
            _require(_sizes(entry.size) and isinstance(entry.chunks, list), f"{name} has no shape")
            _require(all(_sizes(c.offsets) and _sizes(c.sizes) for c in entry.chunks), f"{name} has no pieces")
    for name, place in (metadata.planner_data or {}).items():
        _require(_is_place(place), f"{name} is nowhere")
    _require_dense_lists((metadata.planner_data or {}).values())


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TypeError(message)


def _is_place(keys: object) -> bool:
    if not isinstance(keys, tuple) or not 0 < len(keys) <= _MOST_DEPTH or not isinstance(keys[0], str):
        return False
    return all(isinstance(key, str) or (type(key) is int and key >= 0) for key in keys)


def _require_dense_lists(places: Iterable[tuple[str | int, ...]]) -> None:
    indices: dict[tuple[str | int, ...], set[int]] = {}
    for keys in places:
        for depth, key in enumerate(keys):
            if isinstance(key, int):
                indices.setdefault(keys[:depth], set()).add(key)
    for keys, used in indices.items():
        missing = max(used) + 1 - len(used)
        _require(missing <= _MOST_GAPS, f"{'.'.join(map(str, keys))} is a list without {missing:,} of its elements")


def _sizes(values: object) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _require_consistent(path: Path, metadata: Metadata) -> None:
    """Check the metadata against itself and against the files: it has no checksum."""
    ends: dict[str, int] = {}
    for info in metadata.storage_data.values():
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    for name, end in ends.items():
        _require_file(path, name, end)
    for name, entry in metadata.state_dict_metadata.items():
        _require_whole(path, name, entry)
    known = metadata.state_dict_metadata.keys()
    stored = {index.fqn for index in metadata.storage_data}
    empty = {name for name in known - stored if math.prod(getattr(metadata.state_dict_metadata[name], "size", ())) == 0}
    if unknown := sorted(stored ^ (known - empty)):
        raise CheckpointError(f"{path}: damaged, it does not say of {unknown[0]} both where and of what kind it is")
    for name, place in (metadata.planner_data or {}).items():
        if name not in known or name != ".".join(map(str, place)):
            raise CheckpointError(f"{path}: damaged, it has {name} at {'.'.join(map(str, place))}")


def _require_file(metadata: Path, name: str, size: int) -> None:
    file = metadata.parent / name
    if Path(name).name != name:
        raise CheckpointError(f"{metadata}: refused, since it names a file outside its folder: {name}")
    if not file.is_file():
        raise CheckpointError(f"{file}: missing; the checkpoint is damaged")
    if file.stat().st_size < size:
        raise CheckpointError(f"{file}: {file.stat().st_size:,} bytes instead of at least {size:,}; it is cut short")


def _require_whole(metadata: Path, name: str, entry: TensorStorageMetadata | BytesStorageMetadata) -> None:
    """Require that the pieces make up the tensor: DCP would silently leave missing values unchanged."""
    if isinstance(entry, TensorStorageMetadata):
        if not isinstance(entry.properties.dtype, torch.dtype):
            raise TypeError(f"{name} has values of type {entry.properties.dtype!r}")
        held, total = sum(math.prod(chunk.sizes) for chunk in entry.chunks), math.prod(entry.size)
        if held != total:
            raise CheckpointError(f"{metadata}: holds {held:,} of the {total:,} values of {name}; it is damaged")
        _require_no_overlap(metadata, name, entry)


def _require_no_overlap(metadata: Path, name: str, entry: TensorStorageMetadata) -> None:
    pieces = sorted(_ranges(chunk) for chunk in entry.chunks if math.prod(chunk.sizes))
    for piece in pieces:
        if any(end > size for (_, end), size in zip(piece, entry.size, strict=True)):
            raise CheckpointError(f"{metadata}: a piece of {name} reaches beyond its end; it is damaged")
    if len(pieces) < 2:
        return
    places = np.array(pieces, dtype=np.int64).reshape(len(pieces), -1, 2)
    begins, ends = places[..., 0], places[..., 1]
    for number in range(len(pieces) - 1):
        # Pieces are sorted: later ones begin at the same index of the first dimension or after it.
        near = slice(number + 1, int(np.searchsorted(begins[:, 0], ends[number, 0])) if begins.shape[1] else None)
        if ((begins[near] < ends[number]) & (begins[number] < ends[near])).all(axis=1).any():
            raise CheckpointError(f"{metadata}: two pieces of {name} lie over each other; it is damaged")


def _ranges(chunk: ChunkStorageMetadata) -> list[tuple[int, int]]:
    return [(begin, begin + length) for begin, length in zip(chunk.offsets, chunk.sizes, strict=True)]
