"""The checkpoint formats that the core brings. A format moves bytes; it decides nothing."""

from __future__ import annotations

import dataclasses
import io
import math
import pickle
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.futures import Future

from recipe_core.errors import CheckpointError, DiskError, RecipeError
from recipe_core.mismatch import mismatch
from recipe_core.safe_pickle import forbidden, read_pickle
from recipe_core.specs import NoSettings

METADATA = ".metadata"


class Dcp:
    """``torch.distributed.checkpoint``: every rank writes its own part, and any number of ranks in any layout reads it.

    A state is a nested dict with text keys. Its leaves are tensors, DTensors and plain values (None, bool, int, float,
    str, and lists and tuples of them). Tensors that are no DTensor, and plain values, are the same on all ranks; each
    is written by one rank.

    Nothing read is unpickled freely: ``.metadata`` may name DCP's own dataclasses only, tensors and plain values what
    ``torch.load(weights_only=True)`` permits.
    """

    name = "dcp"
    group: dist.ProcessGroup | None = None
    """What the ranks meet in; None: the default group. Whoever saves in another thread sets one of its own."""

    def __init__(self, config: NoSettings | None = None) -> None:
        """It has no settings."""

    def save(self, path: Path, state: dict[str, Any]) -> None:
        """Write ``state`` into the empty folder ``path``; all ranks call it, and all raise when one fails.

        Raises:
            DiskError: the disk is full or cannot be written.
            CheckpointError: ``state`` holds what could not be read again.
        """
        with _one_error(path, writing=True):
            dcp.save(
                state, storage_writer=_Writer(path), planner=_SavePlanner(), process_group=self.group,
                no_dist=not dist.is_initialized(),
            )  # fmt: skip

    def load(self, path: Path, state: dict[str, Any]) -> None:
        """Fill ``state`` from the folder ``path``: tensors in place, plain values replaced; all ranks call it.

        When it fails while reading, some tensors of ``state`` are filled and others are not.

        Raises:
            CheckpointError: ``path`` is damaged, names a forbidden global, or holds other names, shapes or dtypes.
        """
        with _one_error(path, writing=False):
            dcp.load(
                state, storage_reader=_Reader(path), planner=_LoadPlanner(path), process_group=self.group,
                no_dist=not dist.is_initialized(),
            )  # fmt: skip

    def detect(self, path: Path) -> bool:
        """Whether ``path`` looks like a checkpoint of this format."""
        return (path / METADATA).is_file()

    def contents(self, path: Path) -> dict[str, TensorStorageMetadata | BytesStorageMetadata]:
        """What it holds, by flat name (``"model.blocks.0.bias"``).

        Raises:
            CheckpointError: ``path`` is damaged, or names a forbidden global.
        """
        return dict(_read_metadata(path).state_dict_metadata)


class _Writer(dcp.FileSystemWriter):
    """Says why a disk cannot be written."""

    def __init__(self, path: Path) -> None:
        # One thread: DCP loses the exceptions of the others, and with them a full disk.
        super().__init__(path, thread_count=1, overwrite=False)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[Any]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # PyTorch's zip writer says "unexpected pos" when its stream cannot be written; the reason is behind it.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise


class _SavePlanner(dcp.DefaultSavePlanner):
    """Refuses what could not be read again: better now than at the resume."""

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        _require_text_keys(state_dict, "")
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        for name, value in self.state_dict.items():
            if not isinstance(value, Tensor):
                _require_plain(name, value)
        return super().create_local_plan()


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
    """Reads the metadata without trusting it, and names the file that cannot be read."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        try:
            return _read_metadata(Path(self.path))
        except CheckpointError as error:
            # DCP takes an Exception as a sign to look for metadata of single ranks, and loses its text. Its own kind
            # is a BaseException, which goes through.
            raise CheckpointException("read", {0: (error, traceback.StackSummary())}) from error

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        def file_of(item: ReadItem) -> str:
            return str(self.storage_data[item.storage_index].relative_path)

        for name, items in groupby(sorted(plan.items, key=file_of), key=file_of):
            try:
                super().read_data(dataclasses.replace(plan, items=list(items)), planner)
            except Exception as error:
                raise CheckpointError(_unreadable(Path(self.path) / name, error)) from error
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError) and (found := re.search(r"GLOBAL ([\w.]+)", str(error))):
        return forbidden(path, found[1])
    return f"{path}: damaged ({type(error).__name__}: {str(error).splitlines()[0]})"


class _LoadPlanner(dcp.DefaultLoadPlanner):
    """Compares before it reads, and unpickles plain values as weights only."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        if text := mismatch(self.metadata.state_dict_metadata, self.state_dict):
            raise CheckpointError(f"{self._path}: {text}")
        return super().create_local_plan()

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        *parents, key = self.mappings[read_item.dest_index.fqn]
        target: Any = self.original_state_dict
        for parent in parents:
            target = target[parent]
        target[key] = torch.load(value, weights_only=True)


_DCP = "torch.distributed.checkpoint"
_PERMITTED = {
    *((f"{_DCP}.metadata", name) for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata")),
    *((f"{_DCP}.metadata", name) for name in ("ChunkStorageMetadata", "TensorProperties", "MetadataIndex")),
    *((f"{_DCP}.metadata", name) for name in ("StorageMeta", "_MEM_FORMAT_ENCODING")),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    *((module, f"{kind}Path") for module in ("pathlib", "pathlib._local") for kind in ("Posix", "Windows")),
}


def _permits(module: str, name: str) -> bool:
    """The globals that DCP's metadata consists of."""
    return (module, name) in _PERMITTED or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype))


def _read_metadata(folder: Path) -> Metadata:
    """The metadata of a checkpoint, once every file that it speaks of is there and long enough.

    Raises:
        CheckpointError: it is missing, damaged, incomplete, or names a forbidden global.
    """
    path = folder / METADATA
    metadata = read_pickle(path, _permits)
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise CheckpointError(f"{path}: damaged, it holds no metadata of torch.distributed.checkpoint")
    ends: dict[str, int] = {}
    for info in metadata.storage_data.values():
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    for name, end in ends.items():
        _require_file(path, name, end)
    for name, entry in metadata.state_dict_metadata.items():
        _require_whole(path, name, entry)
    return metadata


def _require_file(metadata: Path, name: str, size: int) -> None:
    file = metadata.parent / name
    if Path(name).name != name:
        raise CheckpointError(f"{metadata}: refused, since it names a file outside its folder: {name}")
    if not file.is_file():
        raise CheckpointError(f"{file}: missing; the checkpoint is damaged")
    if file.stat().st_size < size:
        raise CheckpointError(f"{file}: {file.stat().st_size:,} bytes instead of at least {size:,}; it is cut short")


def _require_whole(metadata: Path, name: str, entry: TensorStorageMetadata | BytesStorageMetadata) -> None:
    """The pieces of a tensor add up to it: DCP would leave what is missing as it is, without a word."""
    if isinstance(entry, TensorStorageMetadata):
        there, all_of_it = sum(math.prod(chunk.sizes) for chunk in entry.chunks), math.prod(entry.size)
        if there != all_of_it:
            raise CheckpointError(f"{metadata}: holds {there:,} of the {all_of_it:,} values of {name}; it is damaged")


@contextmanager
def _one_error(path: Path, *, writing: bool) -> Iterator[None]:
    """Turn DCP's exception, which is a BaseException with every rank's failures, into one error of ours."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # one process: as meant
            yield
    except CheckpointException as error:
        cause = _cause(error)
        if isinstance(cause, RecipeError):
            raise type(cause)(str(cause)) from error
        if isinstance(cause, OSError) and writing:
            raise DiskError(f"{path}: cannot be written ({cause.strerror or cause})") from error
        doing = "written" if writing else "read"
        raise CheckpointError(f"{path}: cannot be {doing} ({type(cause).__name__}: {cause})") from error


def _cause(error: CheckpointException) -> BaseException:
    """The failure that says most: an error of ours before one of the disk before any other, the lowest rank's first."""
    causes = [_cause(c) if isinstance(c, CheckpointException) else c for _, (c, _) in sorted(error.failures.items())]
    return min(causes, key=lambda c: (not isinstance(c, RecipeError), not isinstance(c, OSError)))
