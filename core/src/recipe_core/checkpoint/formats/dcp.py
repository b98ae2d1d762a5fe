"""The checkpoint format ``dcp``, that of torch.distributed.checkpoint. A format moves bytes; it decides nothing."""

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
from recipe_core.checkpoint.io.archive import read_bytes, require_sound
from recipe_core.checkpoint.io.restricted_pickle import unreadable
from recipe_core.checkpoint.lazy import Lazy, Pieces, without_meta
from recipe_core.checkpoint.match.mismatch import described, mismatch
from recipe_core.errors import CheckpointError, RecipeError
from recipe_core.files import disk_error
from recipe_core.hooks.specs import NoSettings
from recipe_core.settings.fill import flat


class Dcp(Format):
    """``torch.distributed.checkpoint``: every rank writes its own part, and any number of ranks in any layout reads it.

    A state is a nested dict with text keys. Its leaves are tensors, DTensors and plain values (None, bool, int, float,
    str, and lists and tuples of them). Tensors that are no DTensor, and plain values, are the same on all ranks; each
    is written by one rank. A :class:`Lazy` is read when it is written.

    Nothing read is unpickled freely: ``.metadata`` may name DCP's own dataclasses only, tensors and plain values what
    ``torch.load(weights_only=True)`` permits.
    """

    name = "dcp"
    background = True

    def __init__(self, config: NoSettings | None = None) -> None:
        """Dcp has no settings."""

    def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state`` into the empty folder ``path``; all ranks call it, and all raise when one fails.

        Raises:
            DiskError: the disk is full or cannot be written.
            CheckpointError: ``state`` holds what could not be read again.
        """
        with _one_error(path, writing=True):
            dcp.save(
                without_meta(state), storage_writer=_Writer(path), planner=_SavePlanner(),
                process_group=context.group,
                no_dist=not dist.is_initialized(),
            )  # fmt: skip

    def load(self, path: Path, state: dict[str, Any], group: dist.ProcessGroup | None = None) -> None:
        """Fill ``state`` from the folder ``path``: tensors in place, plain values replaced; all ranks call it.

        When it fails while reading, some tensors of ``state`` are filled and others are not.

        Raises:
            CheckpointError: ``path`` is damaged, names a forbidden global, or holds other names, shapes or dtypes.
        """
        own = without_meta(state)
        with _one_error(path, writing=False):
            dcp.load(
                own, storage_reader=_Reader(path), planner=_LoadPlanner(path, state), process_group=group,
                no_dist=not dist.is_initialized(),
            )  # fmt: skip
        _take(state, own)

    def files(self, path: Path) -> list[Path]:
        """No files: each tensor is an archive of its own in a file, compared when it is read."""
        return []

    def detect(self, path: Path) -> bool:
        """True if ``path`` looks like a checkpoint of this format."""
        return (path / METADATA).is_file()

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """Everything in it, as a state whose tensors are read when they are asked for; ``weights``: no optimizer.

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


def _take(state: dict[str, Any], own: Mapping[str, Any]) -> None:
    """Put what was loaded into ``own`` into ``state``."""
    for key, value in own.items():
        if isinstance(value, Mapping) and value:
            _take(state[key], value)
        else:
            state[key] = value


def _tensor(path: Path, pieces: Sequence[tuple[MetadataIndex, Any]], entry: TensorStorageMetadata) -> Lazy:
    """A tensor whose pieces are read one by one, when it is read; DCP's loader has a second copy of each."""
    dtype, sizes = entry.properties.dtype, {tuple(chunk.offsets): chunk.sizes for chunk in entry.chunks}
    places = {tuple(index.offset or ()): info for index, info in pieces}
    if places.keys() != sizes.keys():
        raise CheckpointError(f"{path / METADATA}: damaged, it does not say where all of a tensor's pieces are")
    if len(places) == 1:
        return _stored(path, next(iter(places.values())), entry.size, dtype)
    chunks = [(offsets, info, sizes[offsets]) for offsets, info in places.items()]
    return Lazy(entry.size, dtype, partial(_whole, path, chunks, entry.size, dtype))


def _stored(path: Path, info: Any, shape: Sequence[int], dtype: torch.dtype) -> Lazy:
    """The tensor at a place in a file, which is what the metadata says of it."""
    file = path / info.relative_path
    tensor = torch_save.embedded(file, info.offset, info.length)
    if (tensor.shape, tensor.dtype) != (torch.Size(shape), dtype):
        raise CheckpointError(
            f"{file}: damaged, at byte {info.offset:,} it has a tensor {described(tensor)}, and {METADATA} says "
            f"{described(Lazy(torch.Size(shape), dtype, tensor.read))}"
        )
    return tensor


def _whole(
    path: Path, pieces: Sequence[tuple[Sequence[int], Any, Sequence[int]]], shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """Pieces by offsets, place and shape, as one tensor."""
    whole = torch.empty(shape, dtype=dtype)
    for offsets, info, size in pieces:
        target = whole
        for dim, (start, length) in enumerate(zip(offsets, size, strict=True)):
            target = target.narrow(dim, start, length)
        target.copy_(_stored(path, info, size, dtype).read())
    return whole


def _read(path: Path, metadata: Metadata, state: dict[str, Any]) -> None:
    """Fill flat ``state`` in this process alone, whatever others do."""
    with _one_error(path, writing=False):
        dcp.load(state, storage_reader=_Reader(path, metadata), planner=_SafePlanner(), no_dist=True)


class _Writer(dcp.FileSystemWriter):
    """Writes this rank's part into one file, a tensor at a time, and says why a disk cannot be written.

    PyTorch's own keeps every tensor of a file until the last one is written; with several threads it loses the
    exceptions of all but one, and with them a full disk.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, overwrite=False)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        name = f"{plan.storage_data.prefix}0.distcp"
        try:
            with (Path(self.path) / name).open("wb") as file:
                plain_first = sorted(plan.items, key=lambda item: item.type != WriteItemType.BYTE_IO)
                results = [_written(file, name, item, planner.resolve_data(item)) for item in plain_first]
        except RuntimeError as error:
            # PyTorch's zip writer says "unexpected pos" when its stream cannot be written; the reason is behind it.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done


def _written(file: BinaryIO, name: str, item: WriteItem, data: Tensor | io.BytesIO) -> WriteResult:
    """Write one item and say where it stands."""
    begin = file.tell()
    if isinstance(data, Tensor):
        values = data.detach().cpu()
        torch.save(values if values.untyped_storage().nbytes() == values.nbytes else values.clone(), file)
    else:
        file.write(data.getbuffer())
    length = file.tell() - begin
    return WriteResult(index=item.index, size_in_bytes=length, storage_data=_StorageInfo(name, begin, length))


class _SavePlanner(dcp.DefaultSavePlanner):
    """Refuses what could not be read again: better now than at the resume. Reads a Lazy when it is to be written."""

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        _require_text_keys(state_dict, "")
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        # What devices hold in parts is written in parts.
        self._pieces = {name: value for name, value in self.state_dict.items() if isinstance(value, Pieces)}
        for name in self._pieces:
            del self.state_dict[name]
        self._lazy = {name: value for name, value in self.state_dict.items() if isinstance(value, Lazy)}
        for name, value in self._lazy.items():  # planning needs only shape and type
            self.state_dict[name] = torch.empty(value.shape, dtype=value.dtype, device="meta")
        for name, value in self.state_dict.items():
            if not isinstance(value, Tensor):
                _require_plain(name, value)
        plan = super().create_local_plan()
        items = [item for name, value in self._pieces.items() for item in _piece_items(name, value)]
        self.plan = dataclasses.replace(plan, items=[*plan.items, *items])
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        # A planner for devices may silently lose tensors that are sharded over some and copied over others.
        lost = [name for name in {*self.state_dict, *self._pieces} if name not in metadata.state_dict_metadata]
        if lost:
            raise CheckpointError(f"the plan of the checkpoint has lost {len(lost):,} entries: {', '.join(lost[:5])}")
        return plans, metadata

    def lookup_object(self, index: MetadataIndex) -> Any:
        if index.fqn in self._pieces:
            return dict(self._pieces[index.fqn].parts)[tuple(index.offset or ())]
        return self._lazy[index.fqn].read() if index.fqn in self._lazy else super().lookup_object(index)


def _piece_items(name: str, value: Pieces) -> Iterator[WriteItem]:
    """The write items of a tensor in shards."""
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
    """Reads the metadata without trusting it, and names the file that cannot be read.

    Args:
        path: the folder.
        metadata: where it has been read already.
    """

    def __init__(self, path: Path, metadata: Metadata | None = None) -> None:
        super().__init__(path)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        try:
            return self._metadata or read_metadata(Path(self.path))
        except CheckpointError as error:
            # DCP takes an Exception as a sign to look for metadata of single ranks, and loses its text. Its own kind
            # is a BaseException, which goes through.
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
        """Read one entry, whose check sums PyTorch's own reader does not compare."""
        info = self.storage_data[item.storage_index]
        file = Path(self.path) / info.relative_path
        if item.type == LoadItemType.BYTE_IO:
            data = io.BytesIO(read_bytes(file, info.offset, info.length))
            require_sound(data, file)
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
    """Unpickles plain values as weights only."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        *parents, key = self.mappings[read_item.dest_index.fqn]
        target: Any = self.original_state_dict
        for parent in parents:
            target = target[parent]
        target[key] = torch.load(value, weights_only=True)


class _LoadPlanner(_SafePlanner):
    """Compares before it reads."""

    def __init__(self, path: Path, state: Mapping[str, Any]) -> None:
        """``state``: all that the run expects, with meta tensors in the place of what other processes hold."""
        super().__init__()
        self._path = path
        self._others = {name: leaf for name, leaf in flat(state) if isinstance(leaf, Tensor) and leaf.is_meta}

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        if text := mismatch(self.metadata.state_dict_metadata, {**self.state_dict, **self._others}):
            raise CheckpointError(f"{self._path}: {text}")
        return super().create_local_plan()


@contextmanager
def _one_error(path: Path, *, writing: bool) -> Iterator[None]:
    """Turn DCP's exception, which is a BaseException with every rank's failures, into one error of ours."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # one process: as meant
            yield
    except CheckpointException as error:
        cause = _cause(error)
        if not isinstance(cause, Exception):
            raise cause from None  # Ctrl-C is no fault of the files
        if isinstance(cause, RecipeError):
            raise type(cause)(str(cause)) from error
        if isinstance(cause, OSError) and writing:
            raise disk_error(cause, path) from error
        doing = "written" if writing else "read"
        raise CheckpointError(f"{path}: cannot be {doing} ({type(cause).__name__}: {cause})") from error


def _cause(error: CheckpointException) -> BaseException:
    """The failure that says most: an error of ours before one of the disk before any other, the lowest rank's first."""
    causes = [_cause(c) if isinstance(c, CheckpointException) else c for _, (c, _) in sorted(error.failures.items())]
    return min(causes, key=lambda c: (not isinstance(c, RecipeError), not isinstance(c, OSError)))
