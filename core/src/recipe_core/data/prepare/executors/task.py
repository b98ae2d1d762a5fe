"""One part of a preparation, run as a process of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from recipe_core.hooks.specs.executor import PartTask


def run_part(task: PartTask) -> int:
    """Run the command of a part on this machine, with its output in the log; return its exit code, -N for signal N.

    The part ends when the process that called this ends, however that happens.

    Raises:
        OSError: the working directory or the log cannot be used on this machine.
    """
    return start_part(task).wait()


def start_part(task: PartTask) -> subprocess.Popen[bytes]:
    """Start the command of a part in a session of its own, so that a terminal's Ctrl-C reaches only this process."""
    from recipe_core.launch.supervisor import SUPERVISOR

    with task.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "recipe_core.cli", *task.arguments],
            cwd=task.folder,
            env={**os.environ, SUPERVISOR: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
