"""Read-only memory maps that keep no file open, with advice to the kernel about the way they are read."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

Access = Literal["any", "random", "sequential"]
_FAILED = ctypes.c_void_p(-1).value


def mapped(path: Path, dtype: DTypeLike, *, offset: int = 0, access: Access = "any") -> NDArray[Any]:
    """The whole entries of ``dtype`` behind the first ``offset`` bytes of a file: ``[entries]``.

    ``mmap.mmap``, and so ``np.memmap``, holds a duplicate of the file's descriptor before Python 3.13: two thousand
    token files would need more of them than many systems allow a process. The map alone keeps the file's content, even
    after the file was removed.

    Args:
        access: ``random``: a fault reads its page alone, where it would read 64 pages and more ahead; ``sequential``:
            it reads further ahead.

    Raises:
        OSError: the file cannot be opened or mapped.
        ValueError: it ends before ``offset``.
    """
    kind = np.dtype(dtype)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            raise ValueError(f"{path}: {size} bytes, expected {offset} or more")
        if size == offset:
            return np.empty(0, kind)
        content = np.asarray(_Map(path, file.fileno(), size, access))
    return content[offset : offset + (size - offset) // kind.itemsize * kind.itemsize].view(kind)


def prefetch(values: NDArray[Any]) -> None:
    """Have the kernel read all of a mapped array in one go; for work that goes over all of it."""
    first = values.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    _system().madvise(first, values.ctypes.data + values.nbytes - first, mmap.MADV_WILLNEED)


class _Map:
    """Pages of a file, until the last array over them is gone."""

    def __init__(self, path: Path, handle: int, size: int, access: Access) -> None:
        system = _system()
        address = system.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        self._unmap, self._place = system.munmap, (address, size)
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
        if access != "any":  # advice alone: a system that does not take it reads as it likes
            system.madvise(address, size, mmap.MADV_RANDOM if access == "random" else mmap.MADV_SEQUENTIAL)

    def __del__(self) -> None:
        if hasattr(self, "_place"):
            self._unmap(*self._place)


def _system() -> ctypes.CDLL:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return system
