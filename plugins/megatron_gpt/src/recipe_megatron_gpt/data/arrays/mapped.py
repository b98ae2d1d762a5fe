"""Read-only memory maps that keep no file open, with advice to the kernel about the access pattern."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

Access = Literal["any", "random", "sequential"]
_FAILED = ctypes.c_void_p(-1).value


def mapped(path: Path, dtype: DTypeLike, *, offset: int = 0, access: Access = "any") -> NDArray[Any]:
    """The complete entries of ``dtype`` after the first ``offset`` bytes of a file: ``[entries]``.

    Before Python 3.13 ``mmap.mmap``, and so ``np.memmap``, keeps a duplicate of the file descriptor: two thousand token
    files would exceed the limit of many systems. The map keeps the file's content, even after the file was removed.

    Args:
        access: ``random``: a page fault reads only its page, instead of 64 pages and more ahead; ``sequential``: it
            reads further ahead.

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
    """Tell the kernel to read all of a mapped array ahead."""
    first = values.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    _system().madvise(first, values.ctypes.data + values.nbytes - first, mmap.MADV_WILLNEED)


class _Map:
    """A mapping of a file, unmapped when the last array over it is freed."""

    def __init__(self, path: Path, handle: int, size: int, access: Access) -> None:
        system = _system()
        address = system.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        self._unmap, self._place = system.munmap, (address, size)
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
        if access != "any":  # a system may ignore the advice
            system.madvise(address, size, mmap.MADV_RANDOM if access == "random" else mmap.MADV_SEQUENTIAL)

    def __del__(self) -> None:
        if hasattr(self, "_place"):
            self._unmap(*self._place)


@cache
def _system() -> ctypes.CDLL:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return system
