"""The executor: parts as processes of this machine, with a low priority. No torch here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

from recipe_core import ConfigError, ExecutorRun, LaunchError, PartTask, Submit

from recipe_new_plugin.plugin import LowPriority


@contextmanager
def tasks(config: LowPriority, run: ExecutorRun) -> Iterator[Submit]:
    """Yield a function that starts tasks and returns a future for each; end those that still run.

    The result of a future is the exit code of its task. An engine with workers of its own would have them call
    ``recipe_core.data.prepare.run_part(task)``.

    Raises:
        ConfigError: the text after the colon of ``--on new_plugin_low:PROCESSES`` is no number.
    """
    if run.address and not run.address.isdecimal():
        raise ConfigError(f"--on new_plugin_low:{run.address}: expected a number of processes, as in --on new_plugin_low:2")
    threads, lock, running = ThreadPoolExecutor(int(run.address or 1)), Lock(), list[subprocess.Popen[bytes]]()
    ended = False

    def start(task: PartTask) -> int:
        command = ["nice", "-n", str(config.nice), sys.executable, "-m", "recipe_core.cli", *task.arguments]
        with lock, task.log.open("ab") as log:
            if ended:
                raise LaunchError("ended before it began")
            process = subprocess.Popen(command, cwd=task.folder, stdout=log, stderr=log, start_new_session=True)
            running.append(process)
        return process.wait()

    try:
        yield lambda parts: [threads.submit(start, part) for part in parts]
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        with lock:
            ended = True
            for process in running:
                process.terminate()  # a part that is ended continues when the same command is given again
        threads.shutdown()
