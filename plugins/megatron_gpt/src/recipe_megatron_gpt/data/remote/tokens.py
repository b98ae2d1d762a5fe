"""The token ids of a .bin object, present in memory where they are needed."""

from __future__ import annotations

import mmap
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from recipe_core import DataError
from recipe_core.files.objects import ObjectPath, ObjectStat
from recipe_core.files.objects.ranges import Range, joined_within

WASTE = 0.05
"""Share of bytes that may be fetched in vain, to join requests."""
_AT_ONCE = 32
"""Requests at the same time: most are small, and wait for the storage."""
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0x40)


class Blocks:
    """Parts of an object in memory."""

    def __init__(self, ranges: Sequence[Range], bodies: Sequence[bytes]) -> None:
        self._starts, self._stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        self._bodies = bodies

    def part(self, start: int, stop: int) -> memoryview:
        """The bytes from ``start`` to before ``stop``.

        Raises:
            LookupError: they are not here.
        """
        number = bisect_right(self._starts, start) - 1
        if number < 0 or stop > self._stops[number]:
            raise LookupError(f"bytes {start} to {stop} were not fetched")
        first = self._starts[number]
        return memoryview(self._bodies[number])[start - first : stop - first]


class ObjectTokens:
    """All token ids of one object, as an array that takes memory only where :meth:`present` has put them.

    Args:
        place: the .bin object.
        stat: its size and ETag; a later version of the object is refused.
        dtype: of the tokens.

    Raises:
        DataError: the system gives no range of addresses of this size.
    """

    def __init__(self, place: ObjectPath, stat: ObjectStat, dtype: DTypeLike) -> None:
        self.place, self.stat = place, stat
        self.width = np.dtype(dtype).itemsize
        size = stat.size // self.width * self.width
        try:
            # Anonymous memory: a page exists once it is written, and no disk can be full.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            self._map = mmap.mmap(-1, max(mmap.PAGESIZE, size), flags=flags)
        except (OSError, ValueError, OverflowError) as error:
            raise DataError(
                f"{place}: {size:,} bytes of addresses cannot be reserved ({error}); allow it (vm.overcommit_memory "
                "0 or 1, ulimit -v), or copy the file to a disk and name its path"
            ) from error
        self._content = np.frombuffer(self._map, np.uint8, size)
        self.array: NDArray[Any] = self._content.view(dtype)
        """``[tokens]``; zeros where nothing is present."""
        self.array.flags.writeable = False

    def needed(self, ranges: Iterable[Range]) -> list[Range]:
        """The ranges of bytes to fetch for ranges of tokens: joined over small gaps."""
        return joined_within(((start * self.width, stop * self.width) for start, stop in ranges), WASTE)

    def fetch(self, needed: Sequence[Range]) -> Blocks:
        """Fetch ranges of bytes.

        Raises:
            ObjectError: the object has changed, or cannot be read.
        """
        return Blocks(needed, self.place.read_ranges(needed, self.stat.etag, _AT_ONCE))

    @contextmanager
    def present(self, ranges: Sequence[Range], blocks: Blocks) -> Iterator[None]:
        """Have ranges of tokens in :attr:`array` within the block; their memory is freed after it."""
        written: list[Range] = []
        try:
            for start, stop in ranges:
                first, last = start * self.width, stop * self.width
                self._content[first:last] = np.frombuffer(blocks.part(first, last), np.uint8)
                written.append((first, last))
            yield
        finally:
            for first, last in written:
                page = first // mmap.PAGESIZE * mmap.PAGESIZE
                self._map.madvise(mmap.MADV_DONTNEED, page, last - page)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The tokens from ``start`` to before ``stop``, fetched now."""
        if start >= stop:
            return np.empty(0, self.array.dtype)
        body = self.place.read_range(start * self.width, stop * self.width, self.stat.etag)
        return np.frombuffer(body, self.array.dtype)
