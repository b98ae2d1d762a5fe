"""Run recipes through the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.cli.main import main
from recipe_core.launch import supervisor
from recipe_core.testing import forks
from recipe_core.testing.forked_rank import ForkedRank
from recipe_core.train.metrics.curves import Row, read_rows

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class Finished:
    """A finished run: folder, metrics, results and output."""

    out: Path
    rows: list[Row]
    """metrics.jsonl"""
    results: dict[str, Any]
    """results.json"""
    text: str
    """Output of the command."""

    def column(self, key: str = "loss") -> dict[int, Any]:
        """A metric by step."""
        return {row["step"]: row[key] for row in self.rows if key in row}


def command(*words: str, timeout: float = forks.DEADLINE, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``recipe WORDS`` with one thread per process; stdout is text and includes stderr."""
    return subprocess.run(
        [sys.executable, "-m", "recipe_core.cli", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def typed(capture: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return a function that runs ``recipe WORDS`` in this process and returns exit code and output, stderr last."""

    def run(*words: object) -> tuple[int, str]:
        code = main(list(map(str, words)))
        return code, "".join(capture.readouterr())

    return run


def at_once(code: str, *words: str, processes: int = 2, timeout: float = forks.DEADLINE) -> None:
    """Run Python ``code`` with the arguments ``words`` in several processes that start together.

    For resources that all processes of a machine may request at the same moment, such as prepared data.

    Raises:
        AssertionError: a process failed.
        subprocess.TimeoutExpired: a process took longer than ``timeout`` seconds.
    """
    children = [subprocess.Popen([sys.executable, "-c", code, *words]) for _ in range(processes)]
    try:
        assert [child.wait(timeout) for child in children] == [0] * processes
    finally:
        for child in children:
            child.kill()
            child.wait()


def run_tiny(recipe: str, out: Path, *words: str, timeout: float = forks.DEADLINE, **environment: str) -> Finished:
    """Run the ``tiny`` variant of ``recipe`` with further ``words`` (overrides, options) in the folder ``out``.

    As :func:`command` does, but the process and the ranks that it starts are forks of one that has imported PyTorch
    already, which is faster.

    Raises:
        AssertionError: the command failed, or took longer than ``timeout`` seconds; its output is the message.
    """
    code, text = forked("run", f"{recipe}:tiny", *words, "--out", str(out), timeout=timeout, **environment)
    assert code == 0, text
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return Finished(out, read_rows(out / "metrics.jsonl"), results, text)


def forked(*words: str, timeout: float = forks.DEADLINE, **environment: str) -> tuple[int | None, str]:
    """Run ``recipe WORDS`` as :func:`run_tiny` does; return its exit code and its output.

    The code is -N if signal N killed it.
    """
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "printed"
        settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        process = forks.context().Process(
            target=_run_command, args=(list(words), settings, Path.cwd(), printed), daemon=True
        )
        process.start()
        try:
            process.join(timeout)
        finally:
            process.kill()
            process.join()
        return process.exitcode, printed.read_text(encoding="utf-8") if printed.exists() else ""


def _run_command(line: list[str], environment: dict[str, str], folder: Path, printed: Path) -> None:
    import torch  # here: tests without torch import this module, too

    forks.enter(environment)
    os.chdir(folder)
    with printed.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))  # PyTorch read the variable at its import
    setattr(supervisor, "Popen", ForkedRank)  # noqa: B010 - mypy rejects the assignment
    sys.exit(main(line))
