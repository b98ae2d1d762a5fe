"""Show what another process prints, and keep in a log what would have stayed on a terminal."""

from __future__ import annotations

import os
import re
import select
from contextlib import suppress
from pathlib import Path
from typing import IO, TextIO

# Colours, cursor movements and the like (CSI), and links and titles (OSC), as ECMA-48 builds them.
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class Output:
    """One output stream of a process: shown at once, byte by byte, and appended to a log line by line.

    A progress bar draws over its own line many times a second; the log gets that line once, as it was at its end,
    without control sequences.
    """

    def __init__(self, pipe: IO[bytes], shown: TextIO, log: Path) -> None:
        self.pipe = pipe
        os.set_blocking(pipe.fileno(), False)
        with suppress(OSError, ValueError):
            shown.flush()  # what we print ourselves goes through its buffer, what we pass on does not
        self._shown: int | None = _descriptor(shown)
        self._log = log.open("ab", buffering=0)
        self._line = b""

    def pump(self) -> bool:
        """Pass on what is there; False when there is nothing now, or nothing any more.

        A reader who went away (``| head``) or a full disk must not end the run: what cannot be shown is only logged.
        """
        try:
            data = os.read(self.pipe.fileno(), 65536)
        except BlockingIOError:
            return False
        if not data:
            return False
        if self._shown is not None:
            try:
                _write(self._shown, data)
            except OSError:
                self._shown = None
        *lines, rest = (self._line + data).split(b"\n")
        self._append(b"".join(_settled(line) + b"\n" for line in lines))
        # Only what follows the last return can stay: a bar of many hours must not pile up here.
        self._line = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
        return True

    def close(self) -> None:
        if self._line:
            self._append(_settled(self._line) + b"\n")
        self._log.close()
        self.pipe.close()

    def _append(self, data: bytes) -> None:
        with suppress(OSError):
            self._log.write(data)


def _settled(line: bytes) -> bytes:
    return _CONTROL.sub(b"", line.rstrip(b"\r").rpartition(b"\r")[2])


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # closed, replaced by something in memory, or None (pythonw)
        return None


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # whoever shares our terminal may have made it non-blocking
            select.select([], [descriptor], [])
