"""The tests of a session, with a second try for those that may have failed by chance."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nox

from checks import summary
from checks.changes import recent

PARALLEL = ("--numprocesses=auto", "--maxprocesses=4", "--dist=worksteal")
"""Tests often wait for imports and for processes that they start; more than four at once slow each other down."""
AGAIN = 5
"""The most failed tests that run once more. More of them have a common cause."""


@dataclass(frozen=True)
class Failure:
    """One failed test, as conftest.py records it."""

    name: str
    """The argument with which pytest runs it alone."""
    reason: str
    traceback: str
    load: float
    """Load of the machine when it failed."""


def test(session: nox.Session, *arguments: str | Path, strict: bool, **environment: str) -> None:
    """Run pytest with ``arguments``, then with the arguments after ``--`` of nox. To run no test is a failure.

    If at most five tests fail, each is run once more, alone and in a new process. One that then passes is reported as
    flaky, and fails the session only if ``strict``. Tests that changed within a day get no second try, nor do errors of
    collection.
    """
    words = [*map(str, arguments), *session.posargs]
    code, _, failures = _run(session, words, environment)
    if code == 0:
        return
    lasting = failures
    if code == 1 and len(failures) <= AGAIN:
        lasting = [failure for failure in failures if not _passes_alone(session, failure, environment)]
        for failure in (failure for failure in failures if failure not in lasting):
            summary.flaky(session.name, failure.name, failure.load, _processor(), failure.traceback)
    for failure in lasting:
        summary.failed(session.name, failure.name, failure.reason)
    if lasting or strict or not failures:
        session.error(f"pytest ended with {code}: {len(lasting)} of {len(failures)} failures lasted")


def _run(session: nox.Session, words: list[str], environment: dict[str, str]) -> tuple[int, int, list[Failure]]:
    """Run pytest; return its exit code, the number of tests that passed, and the failures: conftest.py records them."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "outcomes.jsonl"
        variables = {"OMP_NUM_THREADS": "1", **environment, "RECIPE_OUTCOMES": str(record)}
        session.run("pytest", *words, env=variables, success_codes=range(256))
        lines = [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []
    ends = [line for line in lines if "exit_code" in line] or [{"exit_code": 3, "passed": 0}]
    failures = {line["name"]: Failure(**line) for line in reversed(lines) if "exit_code" not in line}
    return ends[-1]["exit_code"], ends[-1]["passed"], list(failures.values())[::-1]


def _passes_alone(session: nox.Session, failure: Failure, environment: dict[str, str]) -> bool:
    """Return whether a failed test passes alone, in a new process. Tests of the last day are not run again."""
    path = failure.name.partition("::")[0]
    paths = recent()
    if paths is None or path in paths or "::" not in failure.name:
        return False
    session.log(f"a second try, alone: {failure.name}")
    words = ["--override-ini=addopts=--import-mode=importlib", failure.name]
    code, passed, _ = _run(session, words, environment)
    return code == 0 and passed > 0  # a test that is skipped now has not passed


def _processor() -> str:
    """Return the model of the processor, if the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {models[0] if models else platform.machine()}"
