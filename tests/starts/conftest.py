"""Prints the table of faults and starts when the tests have ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, NoReturn

import fault_table
import pytest


@pytest.fixture(scope="module", autouse=True)
def ended_in_order() -> Iterator[None]:
    """SIGTERM ends the tests as Ctrl-C does: the cluster, the hosts and the disks that they made go with them."""

    def end(*_: Any) -> NoReturn:
        pytest.exit("SIGTERM", 128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if fault_table.ROWS:
        terminalreporter.section("faults and starts")
        terminalreporter.write_line(fault_table.table())
