"""An array of a shard, whose compressed chunks several threads can inflate at a time."""

from __future__ import annotations

import zlib
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

_GZIP = [h5py.h5z.FILTER_DEFLATE]
_SHUFFLED_GZIP = [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE]


class Column:
    """``column[start:stop]`` gives what ``dataset[start:stop]`` does.

    HDF5 inflates a chunk while it holds the one lock of its library. Here it only hands the bytes out, and zlib, which
    holds none, inflates them. That needs chunks that are whole rows under gzip, with or without HDF5's shuffle filter,
    and a ``start`` at which a chunk begins; everything else is left to HDF5.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset, self._dtype, self._chunk = dataset, dataset.dtype, dataset.chunks
        settings = dataset.id.get_create_plist()
        filters = [settings.get_filter(number)[0] for number in range(settings.get_nfilters())]
        rows = self._chunk is not None and self._chunk[1:] == dataset.shape[1:]
        self._direct = rows and filters in (_GZIP, _SHUFFLED_GZIP)
        self._shuffled = filters == _SHUFFLED_GZIP

    def __getitem__(self, where: slice) -> NDArray[Any]:
        start, stop, _ = where.indices(self._dataset.shape[0])
        found: NDArray[Any]
        if not self._direct or start % self._chunk[0]:
            found = self._dataset[where]
            return found
        parts = []
        for first in range(start, stop, self._chunk[0]):
            part = self._read(first)
            if part is None:
                found = self._dataset[where]
                return found
            parts.append(part)
        # The last chunk of a file is as long as the others, filled up.
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found[: stop - start]

    def _read(self, first: int) -> NDArray[Any] | None:
        """The chunk that begins at row ``first``; None where nobody wrote it, or some filter left it as it was."""
        place = (first, *(0 for _ in self._chunk[1:]))
        info = self._dataset.id.get_chunk_info_by_coord(place)
        if info.byte_offset is None or info.filter_mask:
            return None
        _, packed = self._dataset.id.read_direct_chunk(place)
        flat: NDArray[np.uint8] = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
        if self._shuffled:  # all first bytes of the numbers, then all second ones, ...
            flat = np.ascontiguousarray(flat.reshape(self._dtype.itemsize, -1).T).reshape(-1)
        chunk: NDArray[Any] = flat.view(self._dtype).reshape(self._chunk)
        return chunk
