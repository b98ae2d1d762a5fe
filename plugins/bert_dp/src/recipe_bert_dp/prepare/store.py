"""The tokens of a corpus on the disk, with where its sentences and documents start: what pairs are made from."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from recipe_index import bert

TOKENS, SENTENCES, DOCUMENTS = "tokens.bin", "sentences.bin", "documents.bin"
LARGE = 16 << 20
"""Bytes of a file of which a process may keep all pages that it has read."""
SEGMENTS = 512
"""Segments that are read between two times of giving pages back: the system brings in 64 KB around each."""


class StoreWriter:
    """Appends documents; a context manager. ``state`` and ``at`` let an interrupted run go on where it stood.

    Args:
        folder: where the three files are.
        dtype: of the token ids.
        at: a ``state()`` to return to, what was written after it is dropped; None to start anew.
    """

    def __init__(self, folder: Path, dtype: type[np.generic], at: Mapping[str, int] | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.tokens, self.sentences, self.documents = (at[k] if at else 0 for k in ("tokens", "sentences", "documents"))
        sizes = {
            TOKENS: self.tokens * self.dtype.itemsize,
            SENTENCES: 8 * (self.sentences + 1),
            DOCUMENTS: 8 * (self.documents + 1),
        }
        self._files: dict[str, BinaryIO] = {}
        with ExitStack() as stack:  # closes what is open if one of them cannot be opened
            for name, size in sizes.items():
                file = stack.enter_context((folder / name).open("r+b" if at else "w+b"))
                file.truncate(size)  # a new file of starts begins with a zero
                file.seek(size)
                self._files[name] = file
            self._stack = stack.pop_all()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, ids: NDArray[Any], sentences: NDArray[np.int32], documents: NDArray[np.int32]) -> None:
        """Append documents: token ids, tokens of each sentence, sentences of each document; none of them empty."""
        self._files[TOKENS].write(np.ascontiguousarray(ids, self.dtype).tobytes())
        self._files[SENTENCES].write((self.tokens + np.cumsum(sentences, dtype=np.int64)).tobytes())
        self._files[DOCUMENTS].write((self.sentences + np.cumsum(documents, dtype=np.int64)).tobytes())
        self.tokens += int(ids.size)
        self.sentences += int(sentences.size)
        self.documents += int(documents.size)

    def state(self) -> dict[str, int]:
        """Bring everything to the disk, and say how much there is."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {"tokens": self.tokens, "sentences": self.sentences, "documents": self.documents}


class Store:
    """The files mapped into memory.

    Pages of a mapped file count as memory of the process once they were read, and pairs read everywhere: ``forget``
    gives them back, so that the memory does not grow with the corpus.
    """

    def __init__(self, folder: Path, dtype: type[np.generic], stack: ExitStack) -> None:
        self._maps: list[mmap.mmap] = []
        self.tokens: NDArray[Any] = self._map(folder / TOKENS, dtype, stack)
        self.sentences: NDArray[np.int64] = self._map(folder / SENTENCES, np.int64, stack)
        self.documents: NDArray[np.int64] = self._map(folder / DOCUMENTS, np.int64, stack)

    def _map(self, path: Path, dtype: type[np.generic], stack: ExitStack) -> NDArray[Any]:
        file = stack.enter_context(path.open("rb"))
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps.append(mapped)
        return np.frombuffer(mapped, dtype)

    def take(self, pairs: NDArray[np.void]) -> NDArray[Any]:
        """The tokens of ``pairs``, whose starts become places in what is returned.

        They are read in the order in which they lie in the file, so that each page is read once.
        """
        starts = np.concatenate([pairs["a_start"], pairs["b_start"]])
        lengths = np.concatenate([pairs["a_length"], pairs["b_length"]]).astype(np.int64)
        order = np.argsort(starts, kind="stable")
        starts, sizes = starts[order], lengths[order]
        parts = []
        for first in range(0, order.size, SEGMENTS):
            last = first + SEGMENTS
            parts.append(bert.copy_segments(self.tokens, starts[first:last], sizes[first:last]))
            self.forget()
        places = np.empty_like(starts)
        places[order] = np.cumsum(sizes) - sizes
        pairs["a_start"], pairs["b_start"] = np.split(places, 2)
        return np.concatenate([self.tokens[:0], *parts])

    def forget(self) -> None:
        """Give back the pages of large files; they are read again, mostly from the system's cache, where needed."""
        for mapped in self._maps:
            if len(mapped) > LARGE and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


@contextmanager
def opened(folder: Path, dtype: type[np.generic]) -> Iterator[Store]:
    """A :class:`Store` of the files in ``folder``, as long as the block lasts."""
    with ExitStack() as stack:
        yield Store(folder, dtype, stack)
