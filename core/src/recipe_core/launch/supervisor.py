"""The supervisor: run a command as several ranks on this machine, and exit with the first failure. No torch here."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen

from recipe_core.errors import ExitCode, LaunchError
from recipe_core.files import disk_error
from recipe_core.launch import failures
from recipe_core.launch.cores import usable_cores
from recipe_core.launch.ending import record_failure_ending
from recipe_core.launch.failures import Failure, spares
from recipe_core.launch.stop import REPEATED, SIGNALS
from recipe_core.launch.tee import TeeStream
from recipe_core.launch.watch.stall import INTERVAL, StallDetector

STORE = "RECIPE_STORE"
"""Environment variable: the rendezvous file of the ranks of one machine."""
SUPERVISOR = "RECIPE_SUPERVISOR"
"""Environment variable: process id of the supervisor, for :func:`recipe_core.launch.worker.die_with_parent`."""
TERMINAL = "RECIPE_TERMINAL"
"""Environment variable, set for rank 0 if its stdout leads to a terminal, with the terminal's ``COLUMNS``."""
GRACE = "RECIPE_GRACE"
"""Environment variable: seconds that the other ranks have to end after one failed, and again after SIGTERM."""


def supervise(argv: list[str], processes: int, logs: Path) -> int:
    """Run ``argv`` as ``processes`` ranks of one run and wait for them. Call it from the main thread.

    Each rank gets torchrun's variables and a session of its own, so that a terminal's Ctrl-C reaches only this process.
    SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to each rank, where they are blocked until it is ready
    (:func:`recipe_core.launch.stop.unblock`); a second Ctrl-C kills the ranks. When a rank fails, the others get
    ``RECIPE_GRACE`` seconds (5), then SIGTERM, then SIGKILL, and the reason of the first failure is printed once.

    Args:
        argv: the whole command of a rank; it should call :func:`recipe_core.launch.worker.die_with_parent` early and
            :func:`recipe_core.launch.failures.record_failure` when it fails.
        processes: number of ranks, at least 1.
        logs: folder for ``rank-N.log`` (both streams of rank N, appended) and ``rank-N.error.json``. Rank 0's
            output is also shown on this process's, as it comes.

    Returns:
        0 if all ranks succeeded, else the exit code of the rank that failed first (128 + N for signal N).

    Raises:
        LaunchError: the command cannot be started, or ``processes`` or ``RECIPE_GRACE`` is invalid.
        DiskError: the logs cannot be written.
    """
    if os.name != "posix":
        raise LaunchError("--processes: several processes need Linux or macOS; leave it out to run one")
    if processes < 1:
        raise LaunchError(f"--processes: expected at least 1, got {processes}")
    supervisor = _Supervisor(processes, logs, _grace())
    # In this order: a signal between the first two would leave the folder behind.
    with _signals() as signals, _temporary_folder() as folder, spares(processes, Path(folder)) as in_memory:
        with ExitStack() as stack:
            stack.callback(supervisor.close)
            supervisor.start(argv, Path(folder), in_memory)
            supervisor.wait(signals)
        return supervisor.report()


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="recipe-")
    except OSError as error:  # its filename is a file, or all places that were tried
        text = "needed for the ranks to meet, cannot be made"
        raise disk_error(error, Path(error.filename or "a temporary folder"), text, "set TMPDIR") from error


def _grace() -> float:
    text = os.environ.get(GRACE, "5")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise LaunchError(f"the environment says {GRACE}={text!r}; expected a number of seconds, 0 or more")
    return seconds


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket on which each signal arrives as one byte, its number, so that a selector can wait for it."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = {}
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            for number in (*SIGNALS, signal.SIGCHLD):
                # Ignored signals (nohup) stay ignored; the end of a child must be noticed.
                if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, lambda *_: None)
            yield reader
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(wakeup)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    # In processes started in this context, signals to stop stay pending until the process unblocks them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class _Rank:
    """One worker process."""

    number: int
    process: Popen[bytes]
    log: Path
    errors: tuple[Path, ...]
    """Files in which it may have written its failure."""
    ended: float | None = None
    """Time at which its end was noticed, in seconds since the epoch."""
    stopped: bool = False
    """It was stopped because another rank had failed."""

    def send(self, number: int) -> None:
        """Send a signal to the worker only: it stops the processes that it started."""
        if self.ended is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the worker and its process group."""
        with suppress(ProcessLookupError, PermissionError):  # macOS raises EPERM for a group of zombies
            os.killpg(self.process.pid, signal.SIGKILL)

    def stop(self, number: int) -> None:
        """Send a signal to a rank that outlives a failed one; SIGKILL goes to its process group."""
        if self.ended is None:
            self.stopped = True
            if number == signal.SIGKILL:
                self.kill()
            else:
                self.send(number)

    def has_ended(self) -> bool:
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.time()
            self.kill()  # its orphans; at once, before the process number is reused
        return self.ended is not None

    def failure(self, forwarded: Container[int]) -> Failure | None:
        """The failure of this rank; None if it has none, or was only stopped after another rank's failure."""
        code = self.process.returncode
        if code == 0:
            return None
        for path in self.errors:
            if (recorded := failures.read_failure(path)) is not None:
                return recorded
        if self.stopped:
            return None
        ended = self.ended or time.time()
        if code == ExitCode.STOPPED:
            return Failure(ended, f"rank {self.number} was stopped", None, code, printed=True)
        if code == ExitCode.DISK_FULL:
            return Failure(ended, f"rank {self.number} found no room on a disk, not even to say on which", None, code)
        if code > 0:
            return Failure(ended, f"rank {self.number} ended without saying why", None, code)
        if -code in forwarded:  # before it was ready, or it does not handle the signal
            return Failure(ended, f"stopped by {_name(-code)}", None, 128 - code)
        # Gloo and NCCL abort a rank that lost its peer where they cannot raise an error.
        lost_peer = -code == signal.SIGABRT
        return Failure(ended, f"rank {self.number} {_explain(-code)}", None, 128 - code, lost_peer)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def _explain(number: int) -> str:
    if number == signal.SIGKILL:
        return (
            "was killed (SIGKILL); out of memory is the usual cause: the kernel's log (dmesg) would say so, "
            "and a smaller train.micro_batch needs less"
        )
    if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT):
        return f"crashed in native code ({_name(number)}); its log holds the Python stack"
    return f"was ended by {_name(number)}"


class _Supervisor:
    def __init__(self, processes: int, logs: Path, grace: float) -> None:
        self._processes = processes
        self._logs = logs
        self._grace = grace
        self._ranks: list[_Rank] = []
        self._streams: list[TeeStream] = []
        self._received: dict[int, float] = {}
        """The signals that were received and passed on, with the time of the first."""
        self._killed = False
        """By the second Ctrl-C."""
        self._failed_at: float | None = None
        self._stall_detector = StallDetector(logs, processes)
        self._hung: Failure | None = None
        """Set once all ranks are silent."""
        self._escalation = [(grace, signal.SIGQUIT), (grace, signal.SIGTERM), (2 * grace, signal.SIGKILL)]
        """Signals to send to the ranks that outlive a failed one, with the seconds after the failure."""

    def start(self, argv: list[str], folder: Path, in_memory: list[Path]) -> None:
        """Start the ranks; ``folder`` is for their rendezvous."""
        files = [
            [self._logs.absolute() / f"rank-{number}{suffix}" for suffix in (".log", ".error.json")]
            for number in range(self._processes)
        ]
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            for stale in self._logs.glob("rank-*.error.json"):
                stale.unlink()
            for log, _ in files:
                log.touch()
        except OSError as problem:
            raise disk_error(problem, self._logs, "the logs of the ranks cannot be written") from problem
        for number, ((log, error), spare) in enumerate(zip(files, in_memory, strict=True)):
            errors = (error, spare)
            environment = _environment(number, self._processes, folder / "store", errors)
            with _signals_blocked():
                self._ranks.append(self._start_one(argv, number, log, errors, environment))

    def _start_one(
        self, argv: list[str], number: int, log: Path, errors: tuple[Path, Path], environment: dict[str, str]
    ) -> _Rank:
        shown = number == 0
        with log.open("ab", buffering=0) as file:
            try:
                process = Popen(
                    argv,
                    env=environment,
                    stdin=DEVNULL,
                    stdout=PIPE if shown else file,
                    stderr=PIPE if shown else STDOUT,
                    start_new_session=True,
                )
            except OSError as problem:
                raise LaunchError(f"{argv[0]}: cannot be started ({problem.strerror or problem})") from problem
        if process.stdout and process.stderr:
            self._streams = [TeeStream(process.stdout, sys.stdout, log), TeeStream(process.stderr, sys.stderr, log)]
        return _Rank(number, process, log, errors)

    def wait(self, signals: socket.socket) -> None:
        """Pass on signals and output until all ranks have ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(signals, selectors.EVENT_READ)
            for stream in self._streams:
                selector.register(stream.pipe, selectors.EVENT_READ, stream)
            while self._running():
                for key, _ in selector.select(self._escalate() or INTERVAL):
                    if key.data is None:
                        self._forward(signals.recv(4096))
                    elif not key.data.pump():
                        selector.unregister(key.data.pipe)
        for stream in self._streams:
            while stream.pump():
                pass

    def _running(self) -> bool:
        ended = [rank.has_ended() for rank in self._ranks]  # a list: all() would stop at the first that runs
        return not all(ended)

    def _forward(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                continue
            now = time.monotonic()
            first = self._received.setdefault(number, now)
            if number != signal.SIGINT or first == now:
                for rank in self._ranks:
                    rank.send(number)
            elif now - first >= REPEATED[signal.SIGINT]:
                self._killed = True
                self.kill()

    def _escalate(self) -> float | None:
        """Send the signals that are due to ranks that outlive a failed one; return the seconds until the next."""
        if not any(rank.process.returncode for rank in self._ranks) and not self._all_silent():
            return None
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
        while self._escalation:
            after, number = self._escalation[0]
            if now < self._failed_at + after:
                return self._failed_at + after - now
            self._escalation.pop(0)
            for rank in self._ranks:
                if number != signal.SIGQUIT or self._stall_detector.prints_stacks(rank.number, rank.process.pid):
                    rank.stop(number)
        return None

    def _all_silent(self) -> bool:
        running = {rank.number: rank.process.pid for rank in self._ranks if rank.ended is None}
        if self._hung is None and (text := self._stall_detector.check(running)):
            self._hung = Failure(time.time(), text, None, ExitCode.HUNG)
        return self._hung is not None

    def kill(self) -> None:
        """Kill the ranks that still run."""
        for rank in self._ranks:
            if rank.ended is None:
                rank.kill()

    def close(self) -> None:
        """Kill and reap all processes, and close all streams."""
        self.kill()
        for rank in self._ranks:
            rank.process.wait()
        for stream in self._streams:
            stream.close()

    def report(self) -> int:
        """Print the reason of a failure, once, and return the exit code of the run."""
        if sys.stdout.isatty() and any(rank.process.returncode for rank in self._ranks):
            print("\x1b[?25h")  # rank 0 may have left its bar's line open and the cursor hidden
        if self._killed:
            text = "killed by the second Ctrl-C; nothing was saved"
            print(f"recipe: {text}", file=sys.stderr)
            record_failure_ending(self._logs.parent, Failure(time.time(), text, None, 128 + signal.SIGINT))
            return 128 + signal.SIGINT
        if self._hung is not None:
            print(f"recipe: {self._hung.message}; they are in {self._logs}", file=sys.stderr)
            record_failure_ending(self._logs.parent, self._hung)
            return self._hung.exit_code
        causes = [(failure, rank) for rank in self._ranks if (failure := rank.failure(self._received))]
        if not causes:
            return 0
        for failure, rank in causes:
            with suppress(OSError), rank.log.open("a", encoding="utf-8") as log:
                log.write(f"{failure.text}\n")
        # A rank that was stopped, or lost a peer, is not the cause, even if it ended before the peer wrote its failure.
        first, rank = min(
            causes, key=lambda cause: (cause[0].lost_peer, cause[0].exit_code == ExitCode.STOPPED, cause[0].time)
        )
        if first.exit_code == 128 + signal.SIGABRT and all(peer.process.returncode for peer in self._ranks):
            first = replace(first, lost_peer=False)  # all failed, and none before it: the others have lost this one
        record_failure_ending(self._logs.parent, first, rank.number)
        if first.printed:
            return first.exit_code
        print(f"recipe: {first.text}" if first.traceback is None else first.text, file=sys.stderr)
        print(
            f"recipe: rank {rank.number} of {self._processes} ended with exit code {first.exit_code}; "
            f"its log is {self._logs / rank.log.name}",
            file=sys.stderr,
        )
        return first.exit_code


def _environment(rank: int, processes: int, store: Path, errors: tuple[Path, Path]) -> dict[str, str]:
    env = dict(os.environ)
    env.pop(TERMINAL, None)
    env |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        # A file instead of a port, which another run could take between choice and use.
        STORE: str(store),
        SUPERVISOR: str(os.getpid()),
        failures.FILE: str(errors[0]),
        failures.SPARE: str(errors[1]),
        "PYTHONUNBUFFERED": "1",
    }
    # By default, each rank would use all cores.
    env.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // processes)))
    # Log the Python stack of a crash in native code.
    env.setdefault("PYTHONFAULTHANDLER", "1")
    if sys.platform == "linux":
        # All ranks are local, and the host name may resolve to an address that the machine does not answer on.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if rank == 0 and sys.stdout.isatty():
        env |= {TERMINAL: "1", "COLUMNS": str(os.get_terminal_size(sys.stdout.fileno()).columns or 80)}
    return env
