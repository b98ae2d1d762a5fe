"""The checkpoint format ``dcp``: torch.distributed.checkpoint, read without trust.

Reading does not import torch.distributed.checkpoint; ``dcp_write.py`` does.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe_core.checkpoint.formats.base import NO_RUN, Format, SaveContext
from recipe_core.checkpoint.formats.dcp_metadata import (
    METADATA,
    MetadataIndex,
    StorageInfo,
    TensorStorageMetadata,
    read_metadata,
)
from recipe_core.checkpoint.io import torch_save
from recipe_core.checkpoint.io.archive import read_bytes, verify_checksums
from recipe_core.checkpoint.io.restricted_pickle import unreadable
from recipe_core.checkpoint.lazy import Lazy, Offsets, Sizes, narrow
from recipe_core.checkpoint.match.mismatch import described
from recipe_core.errors import CheckpointError
from recipe_core.hooks.specs import NoSettings


class Dcp(Format):
    """``torch.distributed.checkpoint``: every rank writes its shards; any number of ranks in any layout can read them.

    A state is a nested dict with text keys. Its leaves are tensors, DTensors and plain values (None, bool, int, float,
    str, and lists and tuples of them). Plain values and tensors other than DTensors are the same on all ranks; each
    is written by one rank. A :class:`Lazy` is read when it is written.

    Unpickling is restricted: ``.metadata`` may name only DCP's own dataclasses; tensors and plain values may name what
    ``torch.load(weights_only=True)`` permits.
    """

    name = "dcp"
    background = True

    def __init__(self, config: NoSettings | None = None) -> None:
        """Dcp has no settings."""

    def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state`` into the empty folder ``path``; a collective that raises on all ranks if one fails.

        Raises:
            DiskError: the disk is full or cannot be written.
            CheckpointError: ``state`` holds values that could not be read again.
        """
        from recipe_core.checkpoint.formats.dcp_write import write

        write(path, state, context.group)

    def files(self, path: Path) -> list[Path]:
        """Return no files: each tensor is a separate archive inside a file, verified when it is read."""
        return []

    def detect(self, path: Path) -> bool:
        """True if ``path`` looks like a checkpoint of this format."""
        return (path / METADATA).is_file()

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """Return the whole checkpoint as a state of lazy tensors; ``weights``: without the optimizer.

        Raises:
            CheckpointError: ``path`` is damaged, or names a forbidden global.
        """
        metadata = read_metadata(path)
        places = metadata.planner_data or {}
        stored: dict[str, list[tuple[MetadataIndex, StorageInfo]]] = {}
        for index, info in metadata.storage_data.items():
            stored.setdefault(index.fqn, []).append((index, info))
        state: dict[str, Any] = {}
        for name, entry in metadata.state_dict_metadata.items():
            if weights and places.get(name, (name,))[0] == "optimizer":
                continue
            if isinstance(entry, TensorStorageMetadata):
                state[name] = _tensor(path, stored.get(name, []), entry)
            else:
                state[name] = _plain(path, stored[name][0][1])
        return _nested(path, {places.get(name, (name,)): value for name, value in state.items()})


class _Branch(dict[str | int, Any]):
    """A dict or list of a state that is being put together; a plain value may be a dict, too."""


def _nested(path: Path, leaves: Mapping[tuple[str | int, ...], Any]) -> dict[str, Any]:
    """Put leaves at their keys in nested dicts and lists."""
    root = _Branch()
    for keys, leaf in leaves.items():
        branch = root
        for key in keys[:-1]:
            branch = branch.setdefault(key, _Branch())
            if not isinstance(branch, _Branch):
                break
        if not isinstance(branch, _Branch) or keys[-1] in branch:
            raise CheckpointError(f"{path / METADATA}: damaged, it has {'.'.join(map(str, keys))} in another entry")
        branch[keys[-1]] = leaf
    state: dict[str, Any] = _with_lists(path, root)
    return state


def _with_lists(path: Path, branch: _Branch) -> Any:
    """Turn branches with numbers for keys into lists. DCP stores nothing of an empty dict in a list: None is there."""
    values = {key: _with_lists(path, value) if isinstance(value, _Branch) else value for key, value in branch.items()}
    numbers = [key for key in values if isinstance(key, int)]
    if not numbers:
        return values
    if len(numbers) < len(values):
        raise CheckpointError(f"{path / METADATA}: damaged, it has entries that are both in a dict and in a list")
    return [values.get(number) for number in range(max(numbers) + 1)]


@dataclass(frozen=True, eq=False)
class _Chunk:
    """A stored chunk of a tensor."""

    file: Path
    begin: int
    length: int
    offsets: Offsets
    """Place in the whole tensor."""
    sizes: Sizes
    dtype: torch.dtype

    @cached_property
    def tensor(self) -> Lazy:
        """Open the chunk.

        Raises:
            CheckpointError: it is damaged, or not the tensor that the metadata describes.
        """
        tensor = torch_save.embedded(self.file, self.begin, self.length)
        if (tensor.shape, tensor.dtype) != (torch.Size(self.sizes), self.dtype):
            raise CheckpointError(
                f"{self.file}: damaged, at byte {self.begin:,} it has a tensor {described(tensor)}, and {METADATA} "
                f"says {described(Lazy(torch.Size(self.sizes), self.dtype, tensor.read))}"
            )
        return tensor

    def slice(self, offsets: Offsets, sizes: Sizes) -> Tensor:
        """Read a slice of the chunk; offsets are within the chunk."""
        if self.tensor.sliceable or sizes == tuple(self.sizes):
            return self.tensor.slice(offsets, sizes)
        return narrow(_read_whole(self), offsets, sizes).clone()


def _tensor(path: Path, stored: Sequence[tuple[MetadataIndex, StorageInfo]], entry: TensorStorageMetadata) -> Lazy:
    dtype, sizes = entry.properties.dtype, {tuple(chunk.offsets): tuple(chunk.sizes) for chunk in entry.chunks}
    places = {tuple(index.offset or ()): info for index, info in stored}
    if places.keys() != sizes.keys():
        raise CheckpointError(f"{path / METADATA}: damaged, it does not say where all of a tensor's pieces are")
    chunks = [
        _Chunk(path / info.relative_path, info.offset, info.length, offsets, sizes[offsets], dtype)
        for offsets, info in places.items()
    ]
    read = partial(_assemble, chunks, dtype)
    return Lazy(entry.size, dtype, partial(read, (0,) * len(entry.size), tuple(entry.size)), slices=read)


def _assemble(chunks: Sequence[_Chunk], dtype: torch.dtype, offsets: Offsets, sizes: Sizes) -> Tensor:
    """Read a slice of a tensor from the chunks that hold values of it, one at a time."""
    whole: Tensor | None = None
    for chunk in chunks:
        begins = tuple(map(max, offsets, chunk.offsets))
        ends = [min(o + n, p + m) for o, n, p, m in zip(offsets, sizes, chunk.offsets, chunk.sizes, strict=True)]
        lengths = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
        if min(lengths, default=1) <= 0:
            continue
        values = chunk.slice(_minus(begins, chunk.offsets), lengths)
        if lengths == sizes:
            return values
        whole = torch.empty(sizes, dtype=dtype) if whole is None else whole
        narrow(whole, _minus(begins, offsets), lengths).copy_(values)
    return torch.empty(sizes, dtype=dtype) if whole is None else whole


@lru_cache(maxsize=1)
def _read_whole(chunk: _Chunk) -> Tensor:
    """Read a chunk, once for all slices of it; the caller copies what it hands on."""
    return chunk.tensor.read()


def _minus(offsets: Offsets, origin: Offsets) -> Offsets:
    return tuple(a - b for a, b in zip(offsets, origin, strict=True))


def _plain(path: Path, info: StorageInfo) -> Any:
    """Read a plain value, after its checksums, which PyTorch's own reader does not compare."""
    file = path / info.relative_path
    data = io.BytesIO(read_bytes(file, info.offset, info.length))
    try:
        verify_checksums(data, file)
        data.seek(0)
        return torch.load(data, weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # damage raises many types
        raise CheckpointError(unreadable(file, error)) from error
