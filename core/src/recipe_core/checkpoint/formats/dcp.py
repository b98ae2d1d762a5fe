"""The checkpoint format ``dcp``: torch.distributed.checkpoint, read without trust."""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from recipe_core.checkpoint.formats.base import NO_RUN, Format, SaveContext
from recipe_core.checkpoint.formats.dcp_metadata import METADATA, read_metadata
from recipe_core.checkpoint.io import torch_save
from recipe_core.checkpoint.io.archive import read_bytes, verify_checksums
from recipe_core.checkpoint.io.restricted_pickle import unreadable
from recipe_core.checkpoint.lazy import Lazy, Offsets, ShardedTensorView, Sizes, narrow, without_meta
from recipe_core.checkpoint.match.mismatch import described
from recipe_core.errors import CheckpointError, RecipeError
from recipe_core.files import disk_error
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
        with _as_one_error(path):
            dcp.save(
                without_meta(state), storage_writer=_Writer(path), planner=_SavePlanner(),
                process_group=context.group,
                no_dist=not dist.is_initialized(),
            )  # fmt: skip

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
        stored: dict[str, list[tuple[MetadataIndex, Any]]] = {}
        for index, info in metadata.storage_data.items():
            stored.setdefault(index.fqn, []).append((index, info))
        state: dict[str, Any] = {}
        for name, entry in metadata.state_dict_metadata.items():
            if weights and _place(metadata, name)[0] == "optimizer":
                continue
            if isinstance(entry, TensorStorageMetadata):
                state[name] = _tensor(path, stored.get(name, []), entry)
            else:
                state[name] = _plain(path, stored[name][0][1])
        places = {name: _place(metadata, name) for name in state}
        whole: dict[str, Any] = unflatten_state_dict(state, places)
        return whole


def _place(metadata: Metadata, name: str) -> tuple[Any, ...]:
    """Keys of an entry in the nested state."""
    keys: tuple[Any, ...] = (metadata.planner_data or {}).get(name, (name,))
    return keys


@dataclasses.dataclass(frozen=True, eq=False)
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


def _tensor(path: Path, stored: Sequence[tuple[MetadataIndex, Any]], entry: TensorStorageMetadata) -> Lazy:
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


def _plain(path: Path, info: Any) -> Any:
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


class _Writer(dcp.FileSystemWriter):
    """Writes this rank's shards into one file, one tensor at a time, and reports why a disk cannot be written.

    PyTorch's writer keeps every tensor of a file until the last one is written; with several threads it loses the
    exceptions of all but one, and so may hide a full disk.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, overwrite=False)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        name = f"{plan.storage_data.prefix}0.distcp"
        try:
            with (Path(self.path) / name).open("wb") as file:
                plain_first = sorted(plan.items, key=lambda item: item.type != WriteItemType.BYTE_IO)
                results = [_write_item(file, name, item, planner.resolve_data(item)) for item in plain_first]
        except RuntimeError as error:
            # PyTorch's zip writer reports "unexpected pos" if its stream cannot be written; the context has the reason.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done


def _write_item(file: BinaryIO, name: str, item: WriteItem, data: Tensor | io.BytesIO) -> WriteResult:
    begin = file.tell()
    if isinstance(data, Tensor):
        values = data.detach().cpu()
        torch.save(values if values.untyped_storage().nbytes() == values.nbytes else values.clone(), file)
    else:
        file.write(data.getbuffer())
    length = file.tell() - begin
    return WriteResult(index=item.index, size_in_bytes=length, storage_data=_StorageInfo(name, begin, length))


class _SavePlanner(dcp.DefaultSavePlanner):
    """Refuses values that could not be read again, before they are saved. Reads a Lazy when it is written."""

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        _require_text_keys(state_dict, "")
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        self._sharded = {name: value for name, value in self.state_dict.items() if isinstance(value, ShardedTensorView)}
        for name in self._sharded:
            del self.state_dict[name]
        self._lazy = {name: value for name, value in self.state_dict.items() if isinstance(value, Lazy)}
        for name, value in self._lazy.items():  # planning needs only shape and type
            self.state_dict[name] = torch.empty(value.shape, dtype=value.dtype, device="meta")
        for name, value in self.state_dict.items():
            if not isinstance(value, Tensor):
                _require_plain(name, value)
        plan = super().create_local_plan()
        items = [item for name, value in self._sharded.items() for item in _shard_items(name, value)]
        self.plan = dataclasses.replace(plan, items=[*plan.items, *items])
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        # A planner may silently lose tensors that are sharded across some devices and replicated on others.
        lost = [name for name in {*self.state_dict, *self._sharded} if name not in metadata.state_dict_metadata]
        if lost:
            raise CheckpointError(f"the plan of the checkpoint has lost {len(lost):,} entries: {', '.join(lost[:5])}")
        return plans, metadata

    def lookup_object(self, index: MetadataIndex) -> Any:
        if index.fqn in self._sharded:
            return dict(self._sharded[index.fqn].parts)[tuple(index.offset or ())]
        return self._lazy[index.fqn].read() if index.fqn in self._lazy else super().lookup_object(index)


def _shard_items(name: str, value: ShardedTensorView) -> Iterator[WriteItem]:
    properties = TensorProperties(dtype=value.dtype)
    for number, (offsets, part) in enumerate(value.parts):
        chunk = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=part.shape)
        yield WriteItem(
            index=MetadataIndex(name, chunk.offsets, number), type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=value.shape),
        )  # fmt: skip


def _require_text_keys(state: Mapping[Any, Any], parent: str) -> None:
    for key, value in state.items():
        if not isinstance(key, str):
            raise CheckpointError(f"{parent}{key!r}: a checkpoint's keys are text, and this is a {type(key).__name__}")
        if isinstance(value, Mapping):
            _require_text_keys(value, f"{parent}{key}.")


def _require_plain(name: str, value: object) -> None:
    if type(value) in (list, tuple):
        for item in cast("Sequence[object]", value):
            _require_plain(name, item)
    elif type(value) not in (type(None), bool, int, float, str):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(
            f"{name}: a {kind} cannot be saved here; a checkpoint holds nested dicts and lists of tensors, "
            "and of None, bool, int, float, str and tuples of them"
        )


@contextmanager
def _as_one_error(path: Path) -> Iterator[None]:
    """Convert DCP's exception, a BaseException with every rank's failures, into one RecipeError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # one process, as intended
            yield
    except CheckpointException as error:
        cause = _cause(error)
        if not isinstance(cause, Exception):
            raise cause from None  # such as Ctrl-C
        if isinstance(cause, RecipeError):
            raise type(cause)(str(cause)) from error
        if isinstance(cause, OSError):
            raise disk_error(cause, path) from error
        raise CheckpointError(f"{path}: cannot be written ({type(cause).__name__}: {cause})") from error


def _cause(error: CheckpointException) -> BaseException:
    """The most informative failure: a RecipeError before an OSError before others; of equals, the lowest rank's."""
    causes = [_cause(c) if isinstance(c, CheckpointException) else c for _, (c, _) in sorted(error.failures.items())]
    return min(causes, key=lambda c: (not isinstance(c, RecipeError), not isinstance(c, OSError)))
