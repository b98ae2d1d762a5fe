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

_PROGRAM_ARGUMENTS = 3
"""Arguments at the start of a rank's command line that are the program: Python, ``-m`` and the module."""


class ForkedRank:
    """The part of :class:`subprocess.Popen` that the supervisor uses, for a fork that has imported PyTorch already.

    Tests start hundreds of ranks, and the imports of a rank take longer than its steps.
    """

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], stdout: int | IO[bytes], stderr: int, **_: Any
    ) -> None:
        self.returncode: int | None = None
        self.stdout, out = _pipe_ends(stdout)
        self.stderr, err = _pipe_ends(stderr) if stderr != STDOUT else (None, out)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _run_rank(argv[_PROGRAM_ARGUMENTS:], env, out, err)
        for pipe, descriptor in ((self.stdout, out), (self.stderr, err)):
            if pipe:
                os.close(descriptor)

    def poll(self) -> int | None:
        """Return the exit code, or None if the process runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for the end; return the exit code."""
        return self._wait(0)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _pipe_ends(target: int | IO[bytes]) -> tuple[IO[bytes] | None, int]:
    """The stream that the supervisor reads, and the descriptor that the rank writes to."""
    if target != PIPE:
        return None, target if isinstance(target, int) else target.fileno()
    reader, writer = os.pipe()
    return os.fdopen(reader, "rb", buffering=0), writer


def _run_rank(arguments: Sequence[str], environment: Mapping[str, str], out: int, err: int) -> None:
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):  # ignored signals stay ignored, as in a new program
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        forks.enter(environment)
        with Path(os.devnull).open("rb") as null:
            os.dup2(null.fileno(), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.argv = ["recipe", *arguments]
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
