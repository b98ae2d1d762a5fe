"""Ranks that are started here. The workers are small programs without torch."""

from __future__ import annotations

import json
import os
import pty
import selectors
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recipe_core.errors import DiskError, LaunchError
from recipe_core.launch import supervisor
from recipe_core.launch.ending import read_ending
from recipe_core.launch.worker import Worker, die_with_parent, supervise, worker

# Known handlers, whatever started the tests: a shell's background jobs ignore SIGINT, and that is inherited.
SUPERVISE = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from recipe_core.errors import RecipeError
from recipe_core.launch.worker import supervise
assert "torch" not in sys.modules and "numpy" not in sys.modules
sys.exit(supervise([sys.executable, "-c", sys.argv[3]], int(sys.argv[1]), Path(sys.argv[2])))
"""

# What the command line does in every rank, around the body of a test.
WORKER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from recipe_core.errors import ConfigError
from recipe_core.errors import LostRankError
from recipe_core.launch.failures import exit_code, record_failure
from recipe_core.launch.worker import die_with_parent
from recipe_core.launch.stop import StopFlag
die_with_parent()
rank, folder = int(os.environ["RANK"]), Path(os.environ["TEST_FOLDER"])
def ready(name=rank):
    (folder / f"ready-{name}").write_text(str(os.getpid()))
def until(condition):
    while not condition():
        time.sleep(0.01)
def failed(other):
    return (folder / "logs" / f"rank-{other}.error.json").exists()
def main():
BODY
try:
    main()
except BaseException as error:
    if not record_failure(error):
        print("unrecorded")
    sys.exit(exit_code(error))
"""


class Launch:
    """A supervisor at work in a process of its own."""

    def __init__(self, folder: Path, body: str, processes: int, **environment: str) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, str(processes), str(self.logs), WORKER.replace("BODY", lines)],
            env=os.environ | {"TEST_FOLDER": str(folder), "RECIPE_GRACE": "600"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, timeout: float = 120) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def ready(self, *names: str) -> list[int]:
        """Wait for the files that say that the named processes work; their process ids."""
        paths = [self.folder / f"ready-{name}" for name in names]
        wait_for(lambda: all(path.exists() and path.read_text() for path in paths))
        return [int(path.read_text()) for path in paths]

    def log(self, rank: int) -> str:
        return (self.logs / f"rank-{rank}.log").read_text()


def wait_for(condition: Callable[[], bool], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """True if a process runs; a zombie, which only waits for its parent, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    started: list[Launch] = []

    def start(body: str, processes: int = 2, **environment: str) -> Launch:
        started.append(Launch(tmp_path, body, processes, **environment))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
    for path in tmp_path.glob("ready-*"):
        if alive(int(path.read_text() or 0)):
            os.kill(int(path.read_text()), signal.SIGKILL)


def test_all_is_well(launch: Callable[..., Launch]) -> None:
    run = launch("print('out of', rank)\nprint('err of', rank, file=sys.stderr)", 3)
    assert run.finish() == (0, "out of 0\n", "err of 0\n")
    for rank in range(3):
        assert sorted(run.log(rank).splitlines()) == [f"err of {rank}", f"out of {rank}"]
    assert not list(run.logs.glob("*.json"))


def test_what_a_rank_is_told(launch: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    body = """
import json
(folder / f"env-{rank}").write_text(json.dumps(dict(os.environ)))
assert os.getsid(0) == os.getpid()
assert not sys.stdin.read()
"""
    run = launch(body, 2, RECIPE_TERMINAL="stale")
    assert run.finish()[0] == 0
    told: list[dict[str, Any]] = [json.loads((run.folder / f"env-{rank}").read_text()) for rank in range(2)]
    for rank, env in enumerate(told):
        found = worker(env)
        assert found == Worker(rank, 2, rank, 2, "recipe", {"RECIPE_STORE": env["RECIPE_STORE"]})
        assert env["GLOO_SOCKET_IFNAME"] == "lo"
        assert int(env["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
        assert env["PYTHONUNBUFFERED"] == "1"
        assert "RECIPE_SUPERVISOR" not in env  # only the rank itself has that parent
        assert "RECIPE_TERMINAL" not in env  # no terminal here
    assert told[0]["RECIPE_STORE"] == told[1]["RECIPE_STORE"]
    assert not Path(told[0]["RECIPE_STORE"]).parent.exists()  # the private folder is gone with the run


def test_the_users_own_settings_stay(launch: Callable[..., Launch]) -> None:
    run = launch("print(os.environ['OMP_NUM_THREADS'], os.environ['GLOO_SOCKET_IFNAME'])", 2, OMP_NUM_THREADS="7",
                 GLOO_SOCKET_IFNAME="eth9")  # fmt: skip
    assert run.finish() == (0, "7 eth9\n", "")


def test_the_first_failure_is_shown_once_with_its_exit_code(launch: Callable[..., Launch]) -> None:
    body = """
if rank == 1:
    sys.exit(13)
until(lambda: failed(1))
raise ValueError(f"consequence on rank {rank}")
"""
    run = launch(body, 3)
    code, out, err = run.finish()
    assert (code, out) == (13, "")
    assert err.count("Traceback") == 1
    assert "SystemExit: 13" in err
    assert f"rank 1 of 3 ended with exit code 13; its log is {run.logs / 'rank-1.log'}" in err
    assert "consequence" not in err
    assert "ValueError: consequence on rank 0" in run.log(0)
    assert "SystemExit: 13" in run.log(1)


def test_who_lost_a_peer_is_not_the_cause(launch: Callable[..., Launch]) -> None:
    body = """
if rank == 0:
    raise LostRankError("lost contact")
until(lambda: failed(0))
raise ValueError("the cause")
"""
    code, _, err = launch(body).finish()
    assert code == 70
    assert "ValueError: the cause" in err
    assert "lost contact" not in err


def test_a_users_mistake_is_one_message(launch: Callable[..., Launch]) -> None:
    run = launch("raise ConfigError('train.device: no')")
    code, out, err = run.finish()
    assert (code, out) == (2, "")
    assert err.count("train.device: no") == 1
    assert "Traceback" not in err
    assert run.log(0) == run.log(1) == "train.device: no\n"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "was killed (SIGKILL); out of memory is the usual cause"),
        (signal.SIGSEGV, "crashed in native code (SIGSEGV)"),
        (signal.SIGABRT, "crashed in native code (SIGABRT)"),
        (signal.SIGUSR2, "was ended by SIGUSR2"),
    ],
)
def test_a_rank_that_a_signal_ended_is_explained(
    launch: Callable[..., Launch], number: signal.Signals, words: str
) -> None:
    body = f"""
if rank == 1:
    ready()
    os.kill(os.getpid(), {int(number)})
try:
    until((folder / "ready-1").exists)
    until(lambda: os.kill(int((folder / "ready-1").read_text() or os.getpid()), 0))
except ProcessLookupError:  # the supervisor has seen its end
    pass
raise LostRankError("lost contact")
"""
    run = launch(body)
    code, _, err = run.finish()
    assert code == 128 + number
    assert f"rank 1 {words}" in err
    assert "lost contact" not in err
    ending = read_ending(run.folder, 0.0)
    assert ending is not None
    assert (ending.kind, ending.exit_code, ending.rank) == ("killed", code, 1)


def test_a_rank_that_the_backend_aborts_for_another_has_only_lost_it(launch: Callable[..., Launch]) -> None:
    """Gloo aborts a rank where it cannot raise an error."""
    run = launch("ready() or sys.exit() if rank == 1 else until((folder / 'ready-1').exists) or os.abort()")
    run.finish()
    ending = read_ending(run.folder, 0.0)
    assert ending is not None
    assert (ending.kind, ending.rank) == ("lost", None)


def test_a_crash_in_native_code_leaves_its_python_stack_in_the_log(launch: Callable[..., Launch]) -> None:
    run = launch("import ctypes\nctypes.string_at(0)", 1)
    assert run.finish()[0] == 128 + signal.SIGSEGV
    assert "in main" in run.log(0)


def test_the_recorded_exit_code_outlives_an_abort_on_the_way_out(launch: Callable[..., Launch]) -> None:
    body = "import atexit\natexit.register(os.abort)\nsys.exit(13)"
    code, _, err = launch(body, 1).finish()
    assert code == 13
    assert "exit code 13" in err


def test_a_rank_that_ends_without_a_word(launch: Callable[..., Launch]) -> None:
    code, _, err = launch("os._exit(9 if rank == 1 else 0)").finish()
    assert code == 9
    assert "rank 1 ended without saying why" in err


# A supervisor whose clock the test sets by the file "now"; it notes each time that it reads.
CLOCK = """
import os
from pathlib import Path
from types import SimpleNamespace
from recipe_core.launch import supervisor
folder = Path(os.environ["TEST_FOLDER"])
def monotonic():
    now = (folder / "now").read_text()
    with (folder / "read").open("a") as file:
        print(now, file=file)
    return float(now)
supervisor.time = SimpleNamespace(monotonic=monotonic, time=supervisor.time.time)
"""


def test_ranks_that_outlive_a_failure_get_a_grace_then_term_then_kill(
    launch: Callable[..., Launch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
if rank == 0:
    ready()
    until(lambda: len(list(folder.glob("ready-*"))) == 5)
    raise ValueError("the cause")
if rank == 1:
    ready()
    until((folder / "go").exists)  # within the grace
    print("ended by itself")
    ready("again-1")
elif rank == 2:
    with StopFlag() as stop:
        ready()
        until((folder / "go").exists)
        print("at first", stop.signal)
        ready("asked")
        until(lambda: stop.signal)
    print("then", stop.signal)
    ready("again-2")
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    (folder / "ready-child").write_text(str(child.pid))
    ready()
    time.sleep(600)
"""
    monkeypatch.setattr(sys.modules[__name__], "SUPERVISE", CLOCK + SUPERVISE)

    def set_clock(now: str) -> None:
        (tmp_path / "later").write_text(now)
        (tmp_path / "later").replace(tmp_path / "now")

    def at(now: str) -> None:
        """Set the clock, and wait until the supervisor has done what is due then: it reads the clock again."""
        set_clock(now)
        wait_for(lambda: (tmp_path / "read").exists() and (tmp_path / "read").read_text().split().count(now) >= 2)

    set_clock("0")
    run = launch(body, 4, RECIPE_GRACE="0.25")
    *_, three, child = run.ready("0", "1", "2", "3", "child")
    at("0.0")
    at("0.2499")
    (tmp_path / "go").touch()
    run.ready("again-1", "asked")
    at("0.25")
    run.ready("again-2")
    at("0.4999")
    assert alive(three)
    assert alive(child)
    set_clock("0.5")
    code, _, err = run.finish()
    assert code == 70
    assert "ValueError: the cause" in err
    assert run.log(1) == "ended by itself\n"
    assert run.log(2) == "at first None\nthen SIGTERM\n"
    assert run.log(3) == ""
    wait_for(lambda: not alive(child))  # SIGKILL went to all that the rank had started


def test_what_a_rank_leaves_behind_is_ended_with_it(launch: Callable[..., Launch]) -> None:
    body = """
child = subprocess.Popen(["sleep", "600"])
(folder / f"ready-{rank}").write_text(str(child.pid))
"""
    run = launch(body)
    assert run.finish()[0] == 0
    children = run.ready("0", "1")
    wait_for(lambda: not any(alive(pid) for pid in children))


@contextmanager
def hangup(action: signal.Handlers) -> Iterator[None]:
    """Let processes started in here inherit ``action`` for a hangup."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signals_are_passed_on_once(launch: Callable[..., Launch], number: signal.Signals) -> None:
    body = """
counts = {}
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(number, lambda number, _: counts.update({number: counts.get(number, 0) + 1}))
ready()
until(lambda: counts)
ready(f"again-{rank}")
until(lambda: signal.SIGUSR2 in counts)  # which was sent later: all that came before it was passed on
print({signal.Signals(number).name: count for number, count in counts.items()})
"""
    with hangup(signal.SIG_DFL):  # which is ignored where nohup started the tests
        run = launch(body)
    run.ready("0", "1")
    run.process.send_signal(number)
    run.ready("again-0", "again-1")
    run.process.send_signal(signal.SIGUSR2)
    code, out, _ = run.finish()
    assert code == 0
    assert out == run.log(0) == run.log(1) == f"{{'{number.name}': 1, 'SIGUSR2': 1}}\n"


def test_a_run_that_a_signal_stopped_says_so(launch: Callable[..., Launch]) -> None:
    run = launch("ready()\ntime.sleep(600)")
    pids = run.ready("0", "1")
    run.process.send_signal(signal.SIGTERM)
    code, _, err = run.finish()
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in err
    assert "Traceback" not in err
    assert not any(alive(pid) for pid in pids)


def test_the_second_ctrl_c_kills(launch: Callable[..., Launch]) -> None:
    body = """
with StopFlag() as stop:
    ready()
    while stop.signal is None:
        time.sleep(0.01)
    (folder / f"ready-again-{rank}").write_text(str(os.getpid()))
    time.sleep(600)
"""
    run = launch(body)
    pids = run.ready("0", "1")
    run.process.send_signal(signal.SIGINT)
    run.ready("again-0", "again-1")
    while all(alive(pid) for pid in pids):  # one that comes too soon is the first, sent by two
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    code, _, err = run.finish()
    assert code == 130
    assert "second Ctrl-C" in err
    assert not any(alive(pid) for pid in pids)


def test_a_ctrl_c_to_every_process_of_a_run_is_one(launch: Callable[..., Launch]) -> None:
    """As systemd sends it: to the ranks, which get it from their supervisor as well."""
    body = """
from recipe_core.launch.stop import REPEATED
REPEATED[signal.SIGINT] = 1e-9  # no two of them come so soon after one another
with StopFlag() as stop:
    ready()
    until(lambda: stop.signal)
    ready(f"again-{rank}")
    until(lambda: signal.SIGUSR2 in stop._came)
sys.exit(75)
"""
    run = launch(body)
    pids = run.ready("0", "1")
    run.process.send_signal(signal.SIGINT)
    run.ready("again-0", "again-1")
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    run.process.send_signal(signal.SIGUSR2)  # which was sent later: the ranks have taken all that came before
    assert run.finish()[0] == 75


def test_what_timeout_sends_to_a_command_and_to_its_group_is_one_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    rank = types.SimpleNamespace(ended=None, send=sent.append, kill=lambda: sent.append(signal.SIGKILL))
    times = iter((100.0, 100.1, 100.99, 101.0))
    monkeypatch.setattr(supervisor, "time", types.SimpleNamespace(monotonic=times.__next__))
    ours = supervisor._Supervisor(1, tmp_path, 5.0)
    ours._ranks = [rank]  # type: ignore[list-item]
    ours._forward(bytes([signal.SIGINT] * 4))
    assert sent == [signal.SIGINT, signal.SIGKILL]


def test_under_nohup_a_hangup_stays_ignored(launch: Callable[..., Launch]) -> None:
    with hangup(signal.SIG_IGN):
        run = launch("ready()\nwhile not (folder / 'go').exists():\n    time.sleep(0.01)")
    run.ready("0", "1")
    run.process.send_signal(signal.SIGHUP)
    (run.folder / "go").touch()
    assert run.finish()[0] == 0


def test_no_rank_outlives_a_killed_supervisor(launch: Callable[..., Launch]) -> None:
    run = launch("ready()\ntime.sleep(600)", 3)
    pids = run.ready("0", "1", "2")
    run.process.kill()
    run.process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids))


def test_a_rank_whose_supervisor_is_already_gone_ends_at_once() -> None:
    code = "from recipe_core.launch.worker import die_with_parent; die_with_parent(); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"RECIPE_SUPERVISOR": "1"}, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")


def test_where_the_kernel_does_not_tell_the_rank_looks_itself(
    tmp_path: Path, launch: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
import recipe_core.launch.worker
module = recipe_core.launch.worker
module._watch(os.getppid(), module._end_at_once)
ready()
time.sleep(600)
"""
    # Without die_with_parent: as on a platform that has no such call.
    monkeypatch.setattr(sys.modules[__name__], "WORKER", WORKER.replace("die_with_parent()\n", "", 1))
    run = launch(body)
    pids = run.ready("0", "1")
    run.process.kill()
    run.process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids))


def test_a_rank_whose_torchrun_is_gone_is_asked_to_stop(tmp_path: Path) -> None:
    rank = """
import os, pathlib, sys, time
from recipe_core.launch.stop import StopFlag
from recipe_core.launch.worker import die_with_parent
die_with_parent()
with StopFlag() as stop:
    print("ready", flush=True)
    while stop.signal is None:
        time.sleep(0.01)
pathlib.Path(sys.argv[1]).write_text(stop.signal)
"""
    agent = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    path = tmp_path / "signal"
    with subprocess.Popen(
        [sys.executable, "-c", agent, rank, str(path)], env=os.environ | {"TORCHELASTIC_RUN_ID": "none"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stderr.read() == f"recipe: torchrun, process {process.pid}, is gone; its ranks save and stop\n"
    assert path.read_text() == "SIGUSR1"


def test_a_process_without_supervisor_has_nothing_to_die_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECIPE_SUPERVISOR", raising=False)
    die_with_parent()


def test_output_is_shown_as_it_comes(launch: Callable[..., Launch]) -> None:
    run = launch("print('part', end='', flush=True)\nready()\nwhile not (folder / 'go').exists():\n    time.sleep(.01)")
    run.ready("0", "1")
    assert run.process.stdout is not None
    assert run.process.stdout.read(4) == "part"  # before the line's end, and before the run's
    (run.folder / "go").touch()
    assert run.finish()[0] == 0
    assert run.log(0) == "part\n"


def test_all_output_arrives_however_much(launch: Callable[..., Launch]) -> None:
    body = "for i in range(20000):\n    print(i, 'x' * 90)"
    expected = "".join(f"{i} {'x' * 90}\n" for i in range(20000))
    run = launch(body)
    code, out, _ = run.finish()
    assert code == 0
    assert out == expected
    assert run.log(0) == run.log(1) == expected


def test_a_reader_who_goes_away_does_not_end_the_run(launch: Callable[..., Launch]) -> None:
    body = "ready()\nwhile not (folder / 'go').exists():\n    time.sleep(.01)\nfor i in range(9999):\n    print(i)"
    run = launch(body)
    run.ready("0", "1")
    assert run.process.stdout is not None
    run.process.stdout.close()
    (run.folder / "go").touch()
    assert run.process.wait(120) == 0
    assert run.log(0).splitlines()[-1] == "9998"


def test_logs_are_appended_to_and_old_failures_go(launch: Callable[..., Launch]) -> None:
    first = launch("raise ValueError('first') if rank == 1 else None")
    assert first.finish()[0] == 70
    assert (first.logs / "rank-1.error.json").exists()
    second = launch("print('second')")
    assert second.finish()[0] == 0
    assert not list(second.logs.glob("*.json"))
    assert "ValueError: first" in second.log(1)
    assert second.log(1).endswith("second\n")


def test_a_log_keeps_what_would_stay_on_a_terminal(launch: Callable[..., Launch]) -> None:
    body = r"""
for i in range(5):
    print(f"\r\x1b[2K\x1b[32mbar {i}\x1b[0m", end="", flush=True)
print("\r\x1b[2Ka line", end="\r\n")
print("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1b[?25hend\rbar 5", end="")
"""
    run = launch(body, 1)
    code, out, _ = run.finish()
    assert code == 0
    assert "bar 3" in out  # the terminal gets everything
    assert run.log(0) == "a line\nbar 5\n"


def on_a_terminal(folder: Path, body: str) -> tuple[int, str]:
    """Exit code, and what the terminal got, of two ranks."""
    terminal, ours = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", SUPERVISE, "2", str(folder / "logs"), WORKER.replace("BODY", f"    {body}")],
            env=os.environ | {"TEST_FOLDER": str(folder), "COLUMNS": "80"}, stdout=ours, timeout=120, check=False,
        )  # fmt: skip
        os.close(ours)
        return done.returncode, os.read(terminal, 1000).decode()
    finally:
        os.close(terminal)


def test_rank_0_learns_of_the_terminal(tmp_path: Path) -> None:
    body = "print('on', os.environ.get('RECIPE_TERMINAL'), int(os.environ['COLUMNS']) > 0, sys.stdout.isatty())"
    code, shown = on_a_terminal(tmp_path, body)
    assert (code, shown.strip()) == (0, "on 1 True False")
    assert (tmp_path / "logs" / "rank-1.log").read_text() == "on None True False\n"


def test_a_killed_rank_0_leaves_the_terminal_usable(tmp_path: Path) -> None:
    hidden = "\x1b[?25l"
    body = f"if rank == 0: print({hidden!r} + 'bar', end=''); os.kill(os.getpid(), signal.SIGKILL)"
    code, shown = on_a_terminal(tmp_path, body)
    assert code == 137
    assert shown == hidden + "bar\x1b[?25h\r\n"


def test_what_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)]
    with pytest.raises(LaunchError, match="expected at least 1, got 0"):
        supervise(["true"], 0, tmp_path)
    with pytest.raises(LaunchError, match=r"/none: cannot be started \(No such file or directory\)"):
        supervise(["/none"], 2, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="the logs of the ranks cannot be written"):
        supervise(["true"], 2, tmp_path / "file")
    monkeypatch.setenv("RECIPE_GRACE", "soon")
    with pytest.raises(LaunchError, match="RECIPE_GRACE='soon'; expected a number of seconds"):
        supervise(["true"], 2, tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)] == before


def test_it_starts_and_ends_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait of the supervisor ends by an event, none by its timer, which would be a hang here."""
    waits: list[float | None] = []

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            events = super().select(timeout)
            if not events:
                waits.append(timeout)
            return events

    monkeypatch.setattr(supervisor.selectors, "DefaultSelector", Selector)
    monkeypatch.setattr(supervisor, "INTERVAL", 60.0)
    monkeypatch.setattr(time, "sleep", waits.append)
    assert supervise(["/bin/true"], 2, tmp_path) == 0
    assert waits == []
