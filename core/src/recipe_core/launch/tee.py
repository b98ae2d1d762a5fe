"""Show the output of another process, and log what would have remained on a terminal."""

from __future__ import annotations

import os
import re
import select
import selectors
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, TextIO

from recipe_core.files import disk_error
from recipe_core.launch.stop import SIGNALS

# Colours, cursor movements and the like (CSI), and links and titles (OSC), as ECMA-48 builds them.
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class TeeStream:
    """One output stream of a process: shown at once, byte by byte, and appended to a log line by line.

    A progress bar redraws its line many times a second; the log gets the last state of that line, without control
    sequences.
    """

    def __init__(self, pipe: IO[bytes], shown: TextIO, log: Path) -> None:
        self.pipe = pipe
        os.set_blocking(pipe.fileno(), False)
        with suppress(OSError, ValueError):
            shown.flush()  # our own output is buffered, what we pass on is not
        self._shown: int | None = _descriptor(shown)
        self._log = log.open("ab", buffering=0)
        self._line = b""

    def pump(self) -> bool:
        """Pass on the available data; False if there is none now, or at the end.

        A closed reader (``| head``) or a full disk must not end the run: what cannot be shown is only logged.
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
        self._append(b"".join(_final_text(line) + b"\n" for line in lines))
        # Keep only what follows the last carriage return: a progress bar of many hours must not accumulate.
        self._line = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
        return True

    def close(self) -> None:
        if self._line:
            self._append(_final_text(self._line) + b"\n")
        self._log.close()
        self.pipe.close()

    def _append(self, data: bytes) -> None:
        with suppress(OSError):
            self._log.write(data)


def _final_text(line: bytes) -> bytes:
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
        except BlockingIOError:  # another process may have made our terminal non-blocking
            select.select([], [descriptor], [])


def keep(log: Path) -> None:
    """Append the further output of this process to ``log`` as well.

    A separate process writes the log, so that it holds the last output even if this process is killed.

    Raises:
        DiskError: the log cannot be written.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise disk_error(error, log, "the log of this rank cannot be written", "give another --out") from error
    sys.stdout.flush()
    sys.stderr.flush()
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # inherited by the new process, which ends at EOF
    try:
        subprocess.Popen(
            [sys.executable, "-m", "recipe_core.launch.tee", str(log), str(err)],
            stdin=out, pass_fds=[err], start_new_session=True,
        )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.dup2(out_end, 1)
    os.dup2(err_end, 2)
    for descriptor in (out, out_end, err, err_end):
        os.close(descriptor)


def _main(log: Path, errors: int) -> None:
    pipes = (os.fdopen(0, "rb", 0), sys.stdout), (os.fdopen(errors, "rb", 0), sys.stderr)
    streams = [TeeStream(pipe, shown, log) for pipe, shown in pipes]
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.pipe, selectors.EVENT_READ, stream)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.pump():
                    selector.unregister(key.data.pipe)
    for stream in streams:
        stream.close()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
