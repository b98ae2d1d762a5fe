"""Progress messages of a preparation."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest

from recipe_core.data.prepare import ProgressBar, progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    time = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: time.now)
    return time


def test_a_line_now_and_then_where_there_is_no_terminal(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar("tokens", 400_000_000) as shown:
        for clock.now, done in ((101, 10_000_000), (110, 100_000_000), (112, 120_000_000), (120, 300_000_000)):
            shown.update(done)
        clock.now = 125
        shown.update(400_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "tokens: 100.0 of 400.0 MB (25%), 10.0 MB/s, 10 s, 30 s left",
        "tokens: 300.0 of 400.0 MB (75%), 15.0 MB/s, 20 s, 7 s left",
        "tokens: 400.0 of 400.0 MB (100%), 16.0 MB/s, 25 s",
    ]


def test_what_an_earlier_run_did_does_not_count_for_the_speed(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar("tokens", 400_000_000) as shown:
        shown.start_at(300_000_000)
        clock.now += 10
        shown.update(350_000_000)
    assert capsys.readouterr().err.splitlines()[0].endswith("(88%), 5.0 MB/s, 10 s, 10 s left")


def test_nothing_is_said_where_it_is_not_wanted_or_where_it_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("tokens", 10, visible=False) as shown:
        shown.update(10)
    with pytest.raises(KeyError), ProgressBar("tokens", 10):
        raise KeyError
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with ProgressBar("tokens", 2_000_000) as shown:
        shown.update(1_000_000)
        shown.update(2_000_000)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "tokens" in text
    assert "2.0/2.0 MB" in text
    assert "left" in text
