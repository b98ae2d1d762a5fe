from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipe_core.cli.cluster.run_status import final_state
from recipe_core.launch import stop as stop_module
from recipe_core.launch.process import read_process
from recipe_core.launch.stop import StopFlag, StopMode

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
DEADLINE = 120
"""Seconds after which a program that should have ended counts as hung."""


@pytest.fixture(autouse=True)
def plain_handlers() -> Iterator[None]:
    """Set known handlers: in a shell's background job, for example, SIGINT is ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_by_name(number: signal.Signals) -> None:
    with StopFlag() as stop:
        assert stop.signal is None
        signal.raise_signal(number)
        assert stop.signal == number.name


def test_the_first_signal_gives_the_name() -> None:
    with StopFlag() as stop:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal == "SIGUSR1"


def test_the_first_signal_is_answered_once_and_only_if_the_run_saves() -> None:
    for mode, answers in ((StopMode.SAVE, ["SIGUSR1"]), (StopMode.IGNORE, [])):
        answered, answer = [], threading.Event()

        def note(name: str, answered: list[str] = answered, answer: threading.Event = answer) -> None:
            answered.append(name)
            answer.set()

        with StopFlag(mode) as stop:
            stop.on_first = note
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)
            assert stop.signal == "SIGUSR1"
            assert not answers or answer.wait(DEADLINE)
        assert answered == answers


def test_a_ctrl_c_after_another_signal_is_still_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_module, "time", SimpleNamespace(monotonic=lambda: 0.0))  # the two SIGTERM count as one
    with StopFlag() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
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
        signal.raise_signal(number)
        assert stop.signal is None
        signal.raise_signal(signal.SIGTERM)
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


def program(body: str, *sent: int) -> tuple[int, str]:
    """Run a program, send it the signals ``sent``, each after it prints ``ready``; return exit code and stderr.

    The clock of its flag stands still: ``at(seconds)`` sets it, and ``noted(count)`` waits until the flag has noted
    ``count`` signals.
    """
    code = f"""
import faulthandler, signal, sys, time, types
faulthandler.dump_traceback_later({DEADLINE}, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started the tests
from recipe_core.launch import stop as module
from recipe_core.launch.stop import StopFlag, StopMode
times = [0.0]  # the last one is now
readings = []
def monotonic():  # which the flag calls once for each signal
    readings.append(times[-1])
    return times[-1]
module.time = types.SimpleNamespace(monotonic=monotonic)
module._ON_EXIT_SECONDS = {DEADLINE}
at = times.append
def noted(count):
    while len(readings) < count:
        time.sleep(0.01)
{body}
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for number in sent:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
        _, errors = process.communicate()
        return process.returncode, errors


WAIT = f"    print('ready', flush=True)\n    time.sleep({2 * DEADLINE})\n"


@pytest.mark.parametrize("number", SIGNALS)
def test_with_nothing_to_save_a_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    text = f"recipe: stopped by {number.name} with nothing to save; the same line starts it again\n"
    assert program(f"with StopFlag(StopMode.EXIT):\n{WAIT}", number) == (75, text)


def test_it_ends_in_a_call_in_which_python_runs_no_handler() -> None:
    """For example while it waits for other ranks: here, for a lock in C that is never released."""
    body = """
import ctypes
lock, libc = ctypes.create_string_buffer(256), ctypes.CDLL(None)
libc.pthread_mutex_init(lock, None)
with StopFlag(StopMode.EXIT):
    print("ready", flush=True)
    while True:
        libc.pthread_mutex_lock(lock)  # the second time, for ever: no signal interrupts it
"""
    assert program(body, signal.SIGTERM)[0] == 75


def test_on_exit_is_called_first(tmp_path: Path) -> None:
    path = tmp_path / "why"
    body = f"""
import pathlib
with StopFlag(StopMode.EXIT) as stop:
    stop.on_exit = pathlib.Path({str(path)!r}).write_text
{WAIT}"""
    assert program(body, signal.SIGUSR2)[0] == 75
    assert path.read_text() == "SIGUSR2"


def test_a_signal_noted_in_mode_save_ends_the_process_in_mode_exit() -> None:
    body = """
with StopFlag(StopMode.EXIT) as stop:
    stop.mode = StopMode.SAVE
    print("ready", flush=True)
    noted(1)
    print("saved", file=sys.stderr, flush=True)
    stop.mode = StopMode.EXIT
    print("not here", file=sys.stderr, flush=True)
"""
    code, errors = program(body, signal.SIGHUP)
    assert (code, errors.splitlines()[0], "not here" in errors) == (75, "saved", False)


def test_signals_are_ignored_in_mode_ignore() -> None:
    body = """
with StopFlag(StopMode.EXIT) as stop:
    stop.mode = StopMode.IGNORE
    for count in (1, 2):
        print("ready", flush=True)
        noted(count)
"""
    assert program(body, signal.SIGTERM, signal.SIGINT) == (0, "")


TWO = """
with StopFlag() as stop:
    print("ready", flush=True)
    noted(1)
    at({seconds})
    print("ready", flush=True)
    {then}
sys.exit(7 * bool(stop.signal))
"""


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGINT, 1.0), (signal.SIGTERM, 1.0)])
def test_the_second_one_ends_the_process_at_once(number: signal.Signals, seconds: float) -> None:
    code, errors = program(TWO.format(seconds=seconds, then=f"time.sleep({2 * DEADLINE})"), number, number)
    assert (code, errors) == (
        128 + number, f"recipe: ended at once by the second {number.name}; nothing more was saved\n"
    )  # fmt: skip


def test_the_record_of_the_process_says_that_a_second_one_ended_it(tmp_path: Path) -> None:
    recorded = f"""
from pathlib import Path
from recipe_core.launch import process
with process.noted(Path({str(tmp_path)!r})), StopFlag():
    print("ready", flush=True)
    noted(1)
    at(1.0)
    print("ready", flush=True)
    time.sleep({2 * DEADLINE})
"""
    assert program(recorded, signal.SIGINT, signal.SIGINT)[0] == 128 + signal.SIGINT
    found = read_process(tmp_path)
    assert found is not None
    assert found.ended is not None
    reason = "ended at once by the second SIGINT; nothing more was saved"
    assert final_state(tmp_path, found, None) == ("killed", 130, reason)


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        ((signal.SIGTERM, signal.SIGTERM), 0.99), ((signal.SIGUSR1, signal.SIGTERM), 9.0),
        ((signal.SIGINT, signal.SIGINT), 0.99), ((signal.SIGUSR1, signal.SIGUSR1), 9.0),
    ],
)  # fmt: skip
def test_what_a_launcher_and_a_batch_system_both_send_is_one_signal(sent: tuple[int, int], seconds: float) -> None:
    assert program(TWO.format(seconds=seconds, then="noted(2)"), *sent) == (7, "")


def test_forks_end_by_sigterm_and_tell_their_parent_nothing() -> None:
    """Such as the workers of a data loader or of a pool."""
    body = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork beside a thread
with StopFlag() as stop:
    if not (child := os.fork()):
        time.sleep(60)
        os._exit(3)
    os.kill(child, signal.SIGTERM)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(0 if (ended, stop.signal) == (-15, None) else 1)
"""
    assert program(body) == (0, "")


WATCHED = """
import os, sys

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Sender())
sys.argv = ["recipe", "run", "nobody"]
from recipe_core.cli.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["recipe_core.launch.stop", "recipe_core.errors", "recipe_core.cli.main"])
def test_a_signal_while_the_command_is_imported(name: str, number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED.format(name=name, number=int(number))],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (75, False), done.stderr
    assert f"stopped by {number.name}" in done.stderr


def test_signals_are_looked_after_before_anything_is_imported() -> None:
    code = (
        "import os, sys; before = set(sys.modules); import recipe_core.cli.__main__; print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=own_path())
    assert set(done.stdout.split()) == {"recipe_core", "recipe_core.cli", "recipe_core.cli.__main__"}, done.stderr


def own_path() -> dict[str, str]:
    """Return the environment with the package's path: -S skips .pth files, which import other modules."""
    import recipe_core

    return {**os.environ, "PYTHONPATH": str(Path(recipe_core.__file__).parents[1])}
