"""The executor ``local``: parts as processes of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock

from recipe_core.data.prepare.executors.task import start_part
from recipe_core.errors import ConfigError, LaunchError
from recipe_core.hooks.specs import NoSettings
from recipe_core.hooks.specs.executor import ExecutorRun, PartTask, Submit
from recipe_core.launch.cores import usable_cores

_GRACE = 5.0
"""Seconds that a part has to end after SIGTERM."""


@contextmanager
def local(config: NoSettings, run: ExecutorRun) -> Iterator[Submit]:
    """Run as many parts at a time as ``--on local:PROCESSES`` says; by default as many as the cores have room for.

    Raises:
        ConfigError: PROCESSES is no number from 1.
    """
    if run.address and not (run.address.isdecimal() and int(run.address)):
        raise ConfigError(f"--on local:{run.address}: expected a number of processes from 1, as in --on local:4")
    count = int(run.address or max(1, usable_cores() // run.cpus))
    processes, threads = _Processes(), ThreadPoolExecutor(count, "part")
    try:
        yield lambda tasks: [threads.submit(processes.run, task) for task in tasks]
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        processes.end()
        threads.shutdown()


class _Processes:
    """The processes of the parts, each started and awaited by a thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._ended = False

    def run(self, task: PartTask) -> int:
        with self._lock:
            if self._ended:
                raise LaunchError("ended before it began")
            process = start_part(task)
            self._running.append(process)
        code = process.wait()
        with self._lock:
            self._running.remove(process)
        return code

    def end(self) -> None:
        with self._lock:
            self._ended = True
            running = [*self._running]
        for process in running:
            process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            process.kill()
