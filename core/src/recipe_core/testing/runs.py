"""Run recipes through the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.curves import Row, read_rows


@dataclass(frozen=True)
class Finished:
    """What a run left behind."""

    out: Path
    rows: list[Row]
    """metrics.jsonl"""
    results: dict[str, Any]
    """results.json"""
    text: str
    """What the command printed."""

    def column(self, key: str = "loss") -> dict[int, Any]:
        """A metric by step."""
        return {row["step"]: row[key] for row in self.rows if key in row}


def command(*words: str, timeout: float = 300.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``recipe WORDS`` with one thread a process; its output is text, errors behind it."""
    return subprocess.run(
        [sys.executable, "-m", "recipe_core", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def at_once(code: str, *words: str, processes: int = 2, timeout: float = 100.0) -> None:
    """Run Python ``code`` with the arguments ``words`` in several processes that begin together.

    For what all processes of a machine may ask for at the same moment: prepared data, say.

    Raises:
        AssertionError: one of them failed.
        subprocess.TimeoutExpired: one of them took longer than ``timeout`` seconds.
    """
    children = [subprocess.Popen([sys.executable, "-c", code, *words]) for _ in range(processes)]
    try:
        assert [child.wait(timeout) for child in children] == [0] * processes
    finally:
        for child in children:
            child.kill()
            child.wait()


def run_tiny(recipe: str, out: Path, *words: str, timeout: float = 300.0, **environment: str) -> Finished:
    """Run the ``tiny`` variant of ``recipe`` with further ``words`` (overrides, options) in the folder ``out``.

    Raises:
        AssertionError: the command failed; its output is the message.
    """
    done = command("run", f"{recipe}:tiny", *words, "--out", str(out), timeout=timeout, **environment)
    assert done.returncode == 0, done.stdout
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return Finished(out, read_rows(out / "metrics.jsonl"), results, done.stdout)
