"""The checkpoint format ``dcp``: torch.distributed.checkpoint, read without trust."""

from __future__ import annotations

import dataclasses
import io
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
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
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
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
from recipe_core.checkpoint.lazy import Lazy, ShardedTensorView, without_meta
from recipe_core.checkpoint.match.mismatch import described, mismatch
from recipe_core.errors import CheckpointError, RecipeError
from recipe_core.files import disk_error
from recipe_core.hooks.specs import NoSettings
from recipe_core.settings.fill import flat


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
        with _as_one_error(path, writing=True):
            dcp.save(
                without_meta(state), storage_writer=_Writer(path), planner=_SavePlanner(),
                process_group=context.group,
                no_dist=not dist.is_initialized(),
            )  # fmt: skip

    def load(self, path: Path, state: dict[str, Any], group: dist.ProcessGroup | None = None) -> None:
        """Fill ``state`` from the folder ``path``: tensors in place, plain values replaced; a collective.

        If it fails while reading, ``state`` may be partially filled.

        Raises:
            CheckpointError: ``path`` is damaged, names a forbidden global, or holds other names, shapes or dtypes.
        """
        local_state = without_meta(state)
        with _as_one_error(path, writing=False):
            dcp.load(
                local_state, storage_reader=_Reader(path), planner=_LoadPlanner(path, state), process_group=group,
                no_dist=not dist.is_initialized(),
            )  # fmt: skip
        _update(state, local_state)

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
        state: dict[str, Any] = {}
        pieces: dict[str, list[tuple[MetadataIndex, Any]]] = {}
        for index, info in metadata.storage_data.items():
            pieces.setdefault(index.fqn, []).append((index, info))
        for name, entry in metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                state[name] = _tensor(path, pieces.get(name, []), entry)
            else:
                state[name] = None
        plain = {name: value for name, value in state.items() if value is None}
        _read(path, metadata, plain)
        places = metadata.planner_data or {name: (name,) for name in state}
        whole: dict[str, Any] = unflatten_state_dict({**state, **plain}, places)
        return {part: value for part, value in whole.items() if part != "optimizer" or not weights}


def _update(state: dict[str, Any], loaded: Mapping[str, Any]) -> None:
    for key, value in loaded.items():
        if isinstance(value, Mapping) and value:
            _update(state[key], value)
        else:
            state[key] = value


def _tensor(path: Path, pieces: Sequence[tuple[MetadataIndex, Any]], entry: TensorStorageMetadata) -> Lazy:
    """A lazy tensor whose pieces are read one at a time; DCP's loader would hold a second copy of each."""
    dtype, sizes = entry.properties.dtype, {tuple(chunk.offsets): chunk.sizes for chunk in entry.chunks}
    places = {tuple(index.offset or ()): info for index, info in pieces}
    if places.keys() != sizes.keys():
        raise CheckpointError(f"{path / METADATA}: damaged, it does not say where all of a tensor's pieces are")
    if len(places) == 1:
        return _stored_tensor(path, next(iter(places.values())), entry.size, dtype)
    chunks = [(offsets, info, sizes[offsets]) for offsets, info in places.items()]
    return Lazy(entry.size, dtype, partial(_assemble, path, chunks, entry.size, dtype))


def _stored_tensor(path: Path, info: Any, shape: Sequence[int], dtype: torch.dtype) -> Lazy:
    file = path / info.relative_path
    tensor = torch_save.embedded(file, info.offset, info.length)
    if (tensor.shape, tensor.dtype) != (torch.Size(shape), dtype):
        raise CheckpointError(
            f"{file}: damaged, at byte {info.offset:,} it has a tensor {described(tensor)}, and {METADATA} says "
            f"{described(Lazy(torch.Size(shape), dtype, tensor.read))}"
        )
    return tensor


def _assemble(
    path: Path, pieces: Sequence[tuple[Sequence[int], Any, Sequence[int]]], shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    whole = torch.empty(shape, dtype=dtype)
    for offsets, info, size in pieces:
        target = whole
        for dim, (start, length) in enumerate(zip(offsets, size, strict=True)):
            target = target.narrow(dim, start, length)
        target.copy_(_stored_tensor(path, info, size, dtype).read())
    return whole


def _read(path: Path, metadata: Metadata, state: dict[str, Any]) -> None:
    with _as_one_error(path, writing=False):
        dcp.load(state, storage_reader=_Reader(path, metadata), planner=_SafePlanner(), no_dist=True)


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


class _Reader(dcp.FileSystemReader):
    """Reads the metadata without trust, and names the file that cannot be read.

    Args:
        path: the folder.
        metadata: the metadata, if it was read before.
    """

    def __init__(self, path: Path, metadata: Metadata | None = None) -> None:
        super().__init__(path)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        try:
            return self._metadata or read_metadata(Path(self.path))
        except CheckpointError as error:
            # On an Exception, DCP looks for metadata of single ranks and loses the message. Its own CheckpointException
            # is a BaseException, which it passes on.
            raise CheckpointException("read", {0: (error, traceback.StackSummary())}) from error

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        def place(item: ReadItem) -> tuple[str, int]:
            info = self.storage_data[item.storage_index]
            return str(info.relative_path), int(info.offset)

        for item in sorted(plan.items, key=place):
            try:
                self._read_item(item, planner)
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointError(unreadable(Path(self.path) / place(item)[0], error)) from error
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_item(self, item: ReadItem, planner: LoadPlanner) -> None:
        # PyTorch's own reader does not compare checksums.
        info = self.storage_data[item.storage_index]
        file = Path(self.path) / info.relative_path
        if item.type == LoadItemType.BYTE_IO:
            data = io.BytesIO(read_bytes(file, info.offset, info.length))
            verify_checksums(data, file)
            data.seek(0)
            planner.load_bytes(item, data)
            return
        stored = torch_save.embedded(file, info.offset, info.length)
        target = planner.resolve_tensor(item).detach()
        if stored.dtype != target.dtype or len(stored.shape) != len(item.lengths):
            raise CheckpointError(f"{file}: damaged, {METADATA} says other types or shapes than its tensors have")
        target.copy_(narrow_tensor_by_index(stored.read(), item.storage_offsets, item.lengths))
        planner.commit_tensor(item, target)


class _SafePlanner(dcp.DefaultLoadPlanner):
    """Unpickles plain values with ``weights_only=True``."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        *parents, key = self.mappings[read_item.dest_index.fqn]
        target: Any = self.original_state_dict
        for parent in parents:
            target = target[parent]
        target[key] = torch.load(value, weights_only=True)


class _LoadPlanner(_SafePlanner):
    """Compares names, shapes and dtypes before it reads."""

    def __init__(self, path: Path, state: Mapping[str, Any]) -> None:
        """``state``: all entries that the run expects; meta tensors are placeholders for those of other processes."""
        super().__init__()
        self._path = path
        self._placeholders = {name: leaf for name, leaf in flat(state) if isinstance(leaf, Tensor) and leaf.is_meta}

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        if text := mismatch(self.metadata.state_dict_metadata, {**self.state_dict, **self._placeholders}):
            raise CheckpointError(f"{self._path}: {text}")
        return super().create_local_plan()


@contextmanager
def _as_one_error(path: Path, *, writing: bool) -> Iterator[None]:
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
        if isinstance(cause, OSError) and writing:
            raise disk_error(cause, path) from error
        doing = "written" if writing else "read"
        raise CheckpointError(f"{path}: cannot be {doing} ({type(cause).__name__}: {cause})") from error


def _cause(error: CheckpointException) -> BaseException:
    """The most informative failure: a RecipeError before an OSError before others; of equals, the lowest rank's."""
    causes = [_cause(c) if isinstance(c, CheckpointException) else c for _, (c, _) in sorted(error.failures.items())]
    return min(causes, key=lambda c: (not isinstance(c, RecipeError), not isinstance(c, OSError)))
