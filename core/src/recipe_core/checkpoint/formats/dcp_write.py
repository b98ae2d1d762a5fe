"""States written by torch.distributed.checkpoint; see :class:`recipe_core.checkpoint.formats.dcp.Dcp`."""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
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

from recipe_core.checkpoint.lazy import Lazy, ShardedTensorView, without_meta
from recipe_core.errors import CheckpointError, RecipeError
from recipe_core.files import disk_error


def write(path: Path, state: dict[str, Any], group: dist.ProcessGroup | None) -> None:
    """Write ``state`` into the empty folder ``path``; a collective of ``group`` that raises on all ranks if one fails.

    Raises:
        DiskError: the disk is full or cannot be written.
        CheckpointError: ``state`` holds values that could not be read again.
    """
    with _as_one_error(path):
        dcp.save(
            without_meta(state), storage_writer=_Writer(path), planner=_SavePlanner(),
            process_group=group,
            no_dist=not dist.is_initialized(),
        )  # fmt: skip


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
