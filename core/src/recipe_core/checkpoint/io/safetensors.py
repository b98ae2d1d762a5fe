"""Files of safetensors, read and written tensor by tensor, without the package.

Such a file consists of the length of the header (8 bytes, little endian), the header (JSON: name -> dtype, shape, first
and last byte after the header; ``__metadata__``: texts) and the values, without gaps
(https://github.com/huggingface/safetensors, "Format"). It contains no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe_core.checkpoint.io.archive import read_bytes, read_values
from recipe_core.checkpoint.io.torch_save import read_rows
from recipe_core.checkpoint.lazy import Lazy
from recipe_core.errors import CheckpointError

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_HEADER = 100_000_000
"""Largest size of a header in bytes, as in the safetensors package."""
_ALIGNMENT = 8


def read_tensors(path: Path) -> dict[str, Lazy]:
    """Return lazy tensors by name; only the header is read.

    Raises:
        CheckpointError: the file cannot be read, is damaged or cut short.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    length = int.from_bytes(read_bytes(path, 0, 8), "little")
    if length > min(size - 8, _MOST_HEADER):
        raise CheckpointError(f"{path}: damaged or no file of safetensors, its header would be {length:,} bytes long")
    try:
        header: dict[str, Any] = json.loads(read_bytes(path, 8, length), object_pairs_hook=_unique_names)
        header.pop("__metadata__", None)
        tensors = {name: _entry(path, entry, 8 + length) for name, entry in header.items()}
        end = 8 + length + _require_no_gaps(header)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged, its header is not as it should be ({error!r})") from error
    if end != size:
        why = "it is cut short" if size < end else "no tensor is in the rest; it is damaged"
        raise CheckpointError(f"{path}: {size:,} bytes instead of {end:,}; {why}")
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Lazy]) -> None:
    """Write a file that safetensors and transformers can read, with one tensor at a time in memory.

    Raises:
        CheckpointError: safetensors does not support a dtype.
        OSError: the disk is full or cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise CheckpointError(f"{name}: safetensors has no values of type {tensor.dtype}")
        entry = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        header[name] = entry
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            values = tensor.read().contiguous().reshape(-1)
            if values.numel():
                file.write(values.view(torch.uint8).numpy().data)


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _require_no_gaps(header: Mapping[str, Any]) -> int:
    """Require contiguous values, and return where they end."""
    end = 0
    for begin, stop, name in sorted((*entry["data_offsets"], name) for name, entry in header.items()):
        if begin != end:
            raise ValueError(f"{name} begins at byte {begin:,}, and what is before it ends at {end:,}")
        end = int(stop)
    return end


def _entry(path: Path, entry: Mapping[str, Any], data: int) -> Lazy:
    dtype, shape = _DTYPES.get(entry["dtype"]), torch.Size(entry["shape"])
    begin, end = entry["data_offsets"]
    if dtype is None:
        raise ValueError(f"values of type {entry['dtype']}, which this version of PyTorch does not have")
    if not (isinstance(begin, int) and isinstance(end, int)):
        raise ValueError(f"data from {begin!r} to {end!r}, which are no places")
    if end - begin != shape.numel() * dtype.itemsize or begin < 0 or min(shape, default=0) < 0:
        raise ValueError(f"{end - begin} bytes for {list(shape)} values of type {entry['dtype']}")
    read = partial(read_values, path)
    rows = partial(read_rows, read, data + begin, shape, dtype) if shape.numel() and shape else None
    return Lazy(shape, dtype, partial(_values, path, data + begin, shape, dtype), rows=rows)


def _values(path: Path, begin: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    data = read_values(path, begin, shape.numel() * dtype.itemsize)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
