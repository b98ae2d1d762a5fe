"""Reading an array of a shard into preallocated memory, without HDF5's lock."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

try:
    # Inflates twice as fast as zlib, but has no wheels for some platforms.
    from isal.isal_zlib import IsalError, decompress

    InflateError: type[Exception] = IsalError  # type: ignore[assignment]  # its stub: an instance
except ImportError:
    from zlib import decompress
    from zlib import error as InflateError

_GZIP = [h5py.h5z.FILTER_DEFLATE]
_SHUFFLED_GZIP = [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE]


class Column:
    """Reader for the rows of one array.

    HDF5 holds its global lock while it inflates a chunk, and inflates into a buffer first. This class reads the
    compressed bytes of chunks of whole rows under gzip, with or without HDF5's shuffle filter, and inflates them
    without a lock. HDF5 reads everything else, other types of numbers too.

    Args:
        dataset: array of an open file.
        kind: dtype in memory.
    """

    def __init__(self, dataset: h5py.Dataset, kind: str) -> None:
        self._dataset = dataset
        settings = dataset.id.get_create_plist()
        filters = [settings.get_filter(number)[0] for number in range(settings.get_nfilters())]
        chunk = dataset.chunks
        self._direct = bool(
            chunk and chunk[1:] == dataset.shape[1:] and filters in (_GZIP, _SHUFFLED_GZIP)
            and dataset.dtype == np.dtype(kind)
        )  # fmt: skip
        self._rows = chunk[0] if chunk else 0
        self._width = dataset.dtype.itemsize if filters == _SHUFFLED_GZIP else 1
        self._row_bytes = dataset.dtype.itemsize * math.prod(dataset.shape[1:])

    def read(self, target: NDArray[Any], start: int) -> None:
        """Fill ``target`` ``[rows, ...]``, which is contiguous, with the rows from ``start`` on.

        Raises:
            OSError, RuntimeError: the file is damaged there.
        """
        if not self._direct or start % self._rows:
            target[:] = self._dataset[start : start + len(target)]
            return
        for first in range(0, len(target), self._rows):
            part = target[first : first + self._rows]
            if not self._inflate(part, start + first):
                part[:] = self._dataset[start + first : start + first + len(part)]

    def _inflate(self, target: NDArray[Any], start: int) -> bool:
        # False if HDF5 has to read the chunk.
        place = (start, *(0 for _ in self._dataset.shape[1:]))
        info = self._dataset.id.get_chunk_info_by_coord(place)
        if info.byte_offset is None or info.filter_mask:  # never written, or a filter was skipped
            return False
        _, packed = self._dataset.id.read_direct_chunk(place)
        size = self._rows * self._row_bytes
        try:
            plain = decompress(packed, bufsize=size)
        except InflateError as error:
            raise OSError(str(error)) from error
        if len(plain) != size:
            raise OSError(f"a chunk of {len(plain)} bytes, expected {size}")
        # The shuffle filter stores the first bytes of all numbers, then the second bytes, and so on. The last chunk of
        # a file is padded to the length of the others.
        numbers = target.reshape(-1).view(np.uint8).reshape(-1, self._width)
        for byte, row in enumerate(np.frombuffer(plain, np.uint8).reshape(self._width, -1)):
            numbers[:, byte] = row[: len(numbers)]
        return True
