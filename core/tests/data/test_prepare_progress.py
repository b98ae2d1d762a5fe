"""Progress messages of a preparation."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipe_core.data.prepare import ProgressBar, progress
from recipe_core.data.prepare.executors.progress import PartsProgress


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


def test_parts_report_their_numbers(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of five parts is complete, the second continues after 10 MB, the third has just begun."""
    files = {number: tmp_path / str(number) for number in (2, 3, 4, 5)}
    with PartsProgress(files, 1) as shown:
        clock.now += 10
        shown.show(0, 0)
        monkeypatch.setattr(progress, "_file", files[2])
        with ProgressBar("tokens", 40_000_000, visible=False) as bar:
            bar.start_at(10_000_000)
            clock.now += 10
            bar.update(30_000_000)
            files[3].write_text("0 0 20000000")
            shown.show(0, 0)
            shown.show(0, 0)
            bar.update(31_000_000)
        clock.now += 11
        shown.show(1, 0)
        files[3].write_text("0 2000")
        shown.show(1, 2, last=True)
    assert capsys.readouterr().err.splitlines() == [
        "1 of 5 parts, 10 s",
        "1 of 5 parts, 2 running: 30.0 of 120.0 MB, 1.0 MB/s, 20 s, 90 s left",
        "2 of 5 parts, 1 running: 31.0 of 120.0 MB, 0.7 MB/s, 31 s, 131 s left",
        "2 of 5 parts, 2 failed: 31.0 of 120.0 MB, 0.7 MB/s, 31 s, 131 s left",
    ]
