"""Token files while they grow: appended to, journaled, and continued after an interruption."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from recipe_core.data.prepare import Output
from recipe_core.files import sync
from recipe_megatron_gpt.data.header import bin_path, idx_path
from recipe_megatron_gpt.data.indexed import write_idx
from recipe_megatron_gpt.prepare.worker import Encoded

NAME = "tokens"
"""Name of the two files without their ending."""
NOTE_EVERY = 2.0
"""Seconds between two entries of the journal: what an interrupted run does again at most."""


@dataclass(frozen=True)
class State:
    """Progress of the files: an entry of the journal."""

    read: int = 0
    without_text: int = 0
    consumed: int = 0
    bytes: int = 0
    """Of the .bin file."""
    sequences: int = 0
    documents: int = 0


class TokenStore:
    """The .bin file and, beside it, what becomes the .idx file: the sizes, and the ends of the documents.

    All of it goes to the disk as it comes. A run that was interrupted left some more than its last entry in the
    journal says; that is cut off.

    Raises:
        DiskError: the disk is full or cannot be written.
    """

    def __init__(self, output: Output, dtype: np.dtype[np.uint16] | np.dtype[np.int32]) -> None:
        self.dtype = dtype
        self.prefix = output.folder / NAME
        self._output = output
        self._paths = [bin_path(self.prefix), self.prefix.with_suffix(".sizes"), self.prefix.with_suffix(".documents")]
        self._files: list[BinaryIO] = []
        states = [entry["state"] for entry in output.done if "state" in entry]
        self.state = State(**states[-1]) if states else State()
        self._noted = time.monotonic()

    def __enter__(self) -> TokenStore:
        state = self.state
        # The first boundary is the 0 that a longer new file is filled with.
        lengths = (state.bytes, 4 * state.sequences, 8 * (state.documents + 1))
        with self._output.writing():
            self._files = [_opened(path, length) for path, length in zip(self._paths, lengths, strict=True)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            with suppress(OSError):  # a full disk, which was told already
                file.close()

    def add(self, part: Encoded) -> None:
        """Append documents."""
        state = self.state
        ends = state.sequences + np.cumsum(part.sequences, dtype=np.int64)
        with self._output.writing():
            for file, data in zip(self._files, (part.tokens, part.sizes.tobytes(), ends.tobytes()), strict=True):
                file.write(data)
        self.state = State(
            read=state.read + part.read,
            without_text=state.without_text + part.without_text,
            consumed=part.consumed,
            bytes=state.bytes + len(part.tokens),
            sequences=state.sequences + part.sizes.size,
            documents=state.documents + part.sequences.size,
        )
        if time.monotonic() - self._noted >= NOTE_EVERY:
            self.note()

    def note(self) -> None:
        """Have all of it on the disk, and say so in the journal."""
        with self._output.writing():
            for file, path in zip(self._files, self._paths, strict=True):
                file.flush()
                sync(path)
            self._output.note({"state": asdict(self.state)})
        self._noted = time.monotonic()

    def finish(self, counts: dict[str, int]) -> None:
        """Write the .idx file of at least one sequence.

        ``counts`` go into the journal, so that the input need not be read again for them.
        """
        self.note()
        sizes: NDArray[np.int32] = np.memmap(self._paths[1], dtype=np.int32, mode="r")
        boundaries: NDArray[np.int64] = np.memmap(self._paths[2], dtype=np.int64, mode="r")
        with self._output.writing():
            with idx_path(self.prefix).open("wb") as file:
                write_idx(file, self.dtype, sizes, boundaries)
            sync(idx_path(self.prefix))
            self._output.note({"complete": counts})

    def remove_parts(self) -> None:
        """Remove what the .idx file was made from."""
        for path in self._paths[1:]:
            path.unlink(missing_ok=True)


def _opened(path: Path, length: int) -> BinaryIO:
    path.touch()
    file = path.open("r+b", buffering=1 << 20)
    file.truncate(length)
    file.seek(length)
    return file
