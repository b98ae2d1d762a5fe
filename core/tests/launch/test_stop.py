from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from recipe_core.launch.stop import StopFlag

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]


@pytest.fixture(autouse=True)
def plain_handlers() -> Iterator[None]:
    """Known handlers, whatever started the tests: a shell's background jobs ignore SIGINT."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    """Signal ourselves and let Python run the handler, which it does between two instructions."""
    os.kill(os.getpid(), number)
    time.sleep(0.01)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_by_name(number: signal.Signals) -> None:
    with StopFlag() as stop:
        assert stop.signal is None
        send(number)
        assert stop.signal == number.name


def test_the_first_signal_gives_the_name() -> None:
    with StopFlag() as stop:
        send(signal.SIGUSR1)
        send(signal.SIGTERM)
        assert stop.signal == "SIGUSR1"


def test_the_second_ctrl_c_interrupts() -> None:
    with StopFlag() as stop:
        send(signal.SIGINT)
        assert stop.signal == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_a_ctrl_c_after_another_signal_is_still_the_first() -> None:
    with StopFlag() as stop:
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        send(signal.SIGINT)
        assert stop.signal == "SIGTERM"


def test_the_earlier_handlers_come_back_also_after_an_error() -> None:
    def handler(*_: object) -> None:
        raise AssertionError("not to be called")

    for number in SIGNALS:
        signal.signal(number, handler)
    inside = []
    with contextlib.suppress(ValueError), StopFlag():
        inside = [signal.getsignal(number) for number in SIGNALS]
        raise ValueError("from the block")
    assert handler not in inside
    assert [signal.getsignal(number) for number in SIGNALS] == [handler] * len(SIGNALS)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)  # as nohup does with SIGHUP
    with StopFlag() as stop:
        send(number)
        assert stop.signal is None
        send(signal.SIGTERM)
        assert stop.signal == "SIGTERM"


def test_outside_the_main_thread_it_is_a_flag_that_stays_down() -> None:
    found: list[str | None] = []

    def look() -> None:
        with StopFlag() as stop:
            found.append(stop.signal)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [None]
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
