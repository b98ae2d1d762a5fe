"""The tokens of a corpus on disk, with the starts of its sentences and documents."""

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
"""Size in bytes up to which a file may stay in the memory of the process."""
SEGMENTS = 512
"""Segments to read before pages are released: the system reads 64 KB around each."""


class StoreWriter:
    """Appends documents; a context manager. With ``state()`` and ``at``, an interrupted run continues.

    Args:
        folder: of the three files.
        dtype: of the token ids.
        at: ``state()`` to continue from, truncating what was written after it; None to start with empty files.
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
        with ExitStack() as stack:  # closes the open ones if another cannot be opened
            for name, size in sizes.items():
                file = stack.enter_context((folder / name).open("r+b" if at else "w+b"))
                file.truncate(size)  # new files of starts begin with a zero
                file.seek(size)
                self._files[name] = file
            self._stack = stack.pop_all()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, ids: NDArray[Any], sentences: NDArray[np.int32], documents: NDArray[np.int32]) -> None:
        """Append documents: token ids, tokens per sentence, and sentences per document, none of them 0."""
        self._files[TOKENS].write(np.ascontiguousarray(ids, self.dtype).tobytes())
        self._files[SENTENCES].write((self.tokens + np.cumsum(sentences, dtype=np.int64)).tobytes())
        self._files[DOCUMENTS].write((self.sentences + np.cumsum(documents, dtype=np.int64)).tobytes())
        self.tokens += int(ids.size)
        self.sentences += int(sentences.size)
        self.documents += int(documents.size)

    def state(self) -> dict[str, int]:
        """Flush to disk; returns the number of tokens, sentences and documents."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {"tokens": self.tokens, "sentences": self.sentences, "documents": self.documents}


class Store:
    """The files of a store, mapped into memory.

    Mapped pages count as memory of the process once they are read, and pairs are read from everywhere: ``forget``
    releases them, so that the memory does not grow with the corpus.
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
        """The tokens of ``pairs``, whose starts are changed to places in the returned array.

        Tokens are read in the order of the file, so that each page is read once.
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
        """Release the pages of large files; later reads mostly come from the system's cache."""
        for mapped in self._maps:
            if len(mapped) > LARGE and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


@contextmanager
def opened(folder: Path, dtype: type[np.generic]) -> Iterator[Store]:
    """Open a :class:`Store` of the files in ``folder``."""
    with ExitStack() as stack:
        yield Store(folder, dtype, stack)
