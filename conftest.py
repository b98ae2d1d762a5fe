"""For every run of the tests: a cache of its own, the folder with real data, and for nox a record of what failed."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    os.environ["RECIPE_DATA"] = os.environ.get("RECIPE_DATA") or str(Path(__file__).parents[1] / "shared" / "data")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # by a shell that started this in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # so that the programs under test hear it
    if hasattr(config, "workerinput"):  # of xdist: it inherits the cache, and the first process hears of its tests
        return
    folder = tempfile.TemporaryDirectory(prefix="recipe-cache-", ignore_cleanup_errors=True)
    before = os.environ.get("RECIPE_CACHE")
    os.environ["RECIPE_CACHE"] = folder.name

    def restore() -> None:
        os.environ.pop("RECIPE_CACHE")
        if before is not None:
            os.environ["RECIPE_CACHE"] = before
        folder.cleanup()

    config.add_cleanup(restore)
    if record := os.environ.pop("RECIPE_OUTCOMES", ""):  # no test that runs pytest itself writes to it
        config.pluginmanager.register(Record(Path(record)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if "RECIPE_REQUIRE_PEERS" in os.environ and report.skipped and "RECIPE_" not in str(report.longrepr):
        # Otherwise a comparison that never runs would go unnoticed.
        report.outcome = "failed"
        report.longrepr = f"the session should have what this test needs: {report.longrepr}"
    return report


class Record:
    """Writes each failure, then the number of tests that passed and the exit code, as lines of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed = 0

    def write(self, **line: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed
        self._write_failure(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._write_failure(report)

    def _write_failure(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            text = report.longreprtext
            lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
            self.write(
                name=report.nodeid, reason=lines[0].removeprefix("E").strip(), traceback=text, load=os.getloadavg()[0]
            )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.write(exit_code=int(exitstatus), passed=self.passed)
