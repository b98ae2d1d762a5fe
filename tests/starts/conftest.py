"""Prints the table of faults and starts when the tests have ended."""

from __future__ import annotations

import fault_table
import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if fault_table.ROWS:
        terminalreporter.section("faults and starts")
        terminalreporter.write_line(fault_table.table())
