"""Token files under construction: appended to, journaled, and continued after an interruption."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from recipe_core.data.filters import add_counts
from recipe_core.data.prepare import Output
from recipe_core.files import sync
from recipe_megatron_gpt.data.header import bin_path, idx_path
from recipe_megatron_gpt.data.indexed import write_idx
from recipe_megatron_gpt.prepare.worker import EncodedChunk

NAME = "tokens"
"""Name of the two files, without their ending."""
SIZES, DOCUMENTS = ".sizes", ".documents"
"""Endings of the two files from which the .idx file is made."""
NOTE_EVERY = 2.0
"""Seconds between two entries of the journal: the most work that an interruption loses."""


@dataclass(frozen=True)
class StoreState:
    """Progress of the files, an entry of the journal."""

    read: int = 0
    without_text: int = 0
    consumed: int = 0
    bytes: int = 0
    """Of the .bin file."""
    sequences: int = 0
    documents: int = 0
    filters: list[dict[str, Any]] = field(default_factory=list)
    """The counts of each filter, as plain data."""


class TokenStore:
    """The .bin file, and two files from which the .idx file is made: sizes, and ends of documents.

    All data is written immediately; without ``index``, the .idx file is not made. After an interruption, the files are
    truncated to the last entry of the journal.

    Raises:
        DiskError: the disk is full or cannot be written.
    """

    def __init__(self, output: Output, dtype: np.dtype[np.uint16] | np.dtype[np.int32], *, index: bool = True) -> None:
        self.dtype, self._index = dtype, index
        self.prefix = output.folder / NAME
        self._output = output
        self._paths = [bin_path(self.prefix), self.prefix.with_suffix(SIZES), self.prefix.with_suffix(DOCUMENTS)]
        self._files: list[BinaryIO] = []
        states = [entry["state"] for entry in output.done if "state" in entry]
        self.state = StoreState(**states[-1]) if states else StoreState()
        self._noted = time.monotonic()

    def __enter__(self) -> TokenStore:
        state = self.state
        # The first boundary is 0, as which the bytes of an extended file read.
        lengths = (state.bytes, 4 * state.sequences, 8 * (state.documents + 1))
        with self._output.writing():
            self._files = [_opened(path, length) for path, length in zip(self._paths, lengths, strict=True)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            with suppress(OSError):  # a full disk, reported before
                file.close()

    def add(self, part: EncodedChunk) -> None:
        """Append documents."""
        state = self.state
        ends = state.sequences + np.cumsum(part.sequences, dtype=np.int64)
        with self._output.writing():
            for file, data in zip(self._files, (part.tokens, part.sizes.tobytes(), ends.tobytes()), strict=True):
                file.write(data)
        self.state = StoreState(
            read=state.read + part.read,
            without_text=state.without_text + part.without_text,
            consumed=part.consumed,
            bytes=state.bytes + len(part.tokens),
            sequences=state.sequences + part.sizes.size,
            documents=state.documents + part.sequences.size,
            filters=add_counts(state.filters, part.filters),
        )
        if time.monotonic() - self._noted >= NOTE_EVERY:
            self.note()

    def note(self) -> None:
        """Sync all files to disk, and record their state in the journal."""
        with self._output.writing():
            for file, path in zip(self._files, self._paths, strict=True):
                file.flush()
                sync(path)
            self._output.note({"state": asdict(self.state)})
        self._noted = time.monotonic()

    def finish(self, entry: dict[str, Any]) -> None:
        """Complete the files; the .idx file needs at least one sequence.

        ``entry`` is recorded in the journal, so that its counts need no second pass over the input.
        """
        self.note()
        with self._output.writing():
            if self._index:
                write_index(self.prefix, self.dtype)
            self._output.note(entry)

    def remove_parts(self) -> None:
        """Remove the files from which the .idx file was made."""
        for path in self._paths[1:]:
            path.unlink(missing_ok=True)


def write_index(prefix: Path, dtype: np.dtype[Any]) -> None:
    """Write the .idx file from the two files of sizes and of ends, which are not empty."""
    sizes: NDArray[np.int32] = np.memmap(prefix.with_suffix(SIZES), dtype=np.int32, mode="r")
    boundaries: NDArray[np.int64] = np.memmap(prefix.with_suffix(DOCUMENTS), dtype=np.int64, mode="r")
    with idx_path(prefix).open("wb") as file:
        write_idx(file, dtype, sizes, boundaries)
    sync(idx_path(prefix))


def _opened(path: Path, length: int) -> BinaryIO:
    path.touch()
    file = path.open("r+b", buffering=1 << 20)
    file.truncate(length)
    file.seek(length)
    return file
