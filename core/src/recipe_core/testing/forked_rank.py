"""Ranks of ``recipe run --processes`` as forks of their supervisor."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import IO, Any

from recipe_core.cli.__main__ import main
from recipe_core.testing import forks

_PROGRAM = 3
"""Words of a rank's command line that are the program: Python, ``-m`` and the module."""


class ForkedRank:
    """The parts of :class:`subprocess.Popen` that the supervisor uses, for a process that imports PyTorch no more.

    Tests start hundreds of ranks, and the imports of a rank take longer than its steps.
    """

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], stdout: int | IO[bytes], stderr: int, **_: Any
    ) -> None:
        self.returncode: int | None = None
        self.stdout, out = _ends(stdout)
        self.stderr, err = _ends(stderr) if stderr != STDOUT else (None, out)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _become(argv[_PROGRAM:], env, out, err)
        for pipe, descriptor in ((self.stdout, out), (self.stderr, err)):
            if pipe:
                os.close(descriptor)

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self._look(os.WNOHANG)

    def wait(self) -> int | None:
        """The exit code, when it has ended."""
        return self._look(0)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _look(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _ends(where: int | IO[bytes]) -> tuple[IO[bytes] | None, int]:
    """The stream that the supervisor reads, and the descriptor that the rank writes to."""
    if where != PIPE:
        return None, where if isinstance(where, int) else where.fileno()
    reader, writer = os.pipe()
    return os.fdopen(reader, "rb", buffering=0), writer


def _become(words: Sequence[str], environment: Mapping[str, str], out: int, err: int) -> None:
    """In the new process: be the rank, and end."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):  # those that are ignored, stay so in a new program, too
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        forks.enter(environment)
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.argv = ["recipe", *words]
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
