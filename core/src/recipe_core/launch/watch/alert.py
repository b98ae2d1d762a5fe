"""The command of ``train.on_hang``. Imports no torch."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress

SECONDS = 8.0
"""Seconds that the command may take: the supervisor kills a rank 10 s after another one failed."""


def run(command: str, details: Mapping[str, str]) -> str | None:
    """Run a shell command with ``details`` as further environment variables; return a message if it fails."""
    try:
        process = subprocess.Popen(
            command, shell=True, env={**os.environ, **details}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"train.on_hang: {command!r} cannot be started ({error.strerror or error})"
    try:
        _, complaint = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"train.on_hang: {command!r} took longer than {SECONDS:g} s and was killed"
    if process.returncode:
        text = complaint.decode("utf-8", "backslashreplace").strip()
        return f"train.on_hang: {command!r} ended with exit code {process.returncode}" + (f": {text}" if text else "")
    return None
