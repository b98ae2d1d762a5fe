"""The code of frozen_crew. Never edit this file: later cores must run it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from recipe_core import ConfigError, ExecutorRun, PartTask, Submit
from recipe_core.data.prepare import run_part


@contextmanager
def tasks(config, run: ExecutorRun) -> Iterator[Submit]:
    if run.address:
        raise ConfigError(f"--on frozen_crew:{run.address}: a crew has no address")
    threads = ThreadPoolExecutor(config.hands)
    (run.folder / f"{run.name}-{run.cpus}").write_text(f"{run.program} {run.environment} {run.setup}")

    def start(task: PartTask) -> int:
        task.log.write_text(f"{task.number} in {task.folder}: {task.arguments[0]}\n")
        return run_part(task)

    try:
        yield lambda parts: [threads.submit(start, part) for part in parts]
    finally:
        threads.shutdown(cancel_futures=True)
        (run.folder / f"{run.name}-{run.cpus}").unlink()
