"""Parts as tasks of Dask's distributed scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client

from recipe_core import ExecutorRun, LaunchError, Submit
from recipe_core.data.prepare import run_part
from recipe_dask.plugin import Dask


@contextmanager
def tasks(config: Dask, run: ExecutorRun) -> Iterator[Submit]:
    """Connect to a scheduler, or start workers on this machine, which end with the client.

    Dask cannot interrupt a task: after Ctrl-C, parts that run on a scheduler's workers are made to their end.

    Raises:
        LaunchError: no scheduler answers.
    """
    try:
        if run.address:
            client = Client(run.address, timeout=config.seconds, set_as_default=False)
        else:
            client = Client(threads_per_worker=1, dashboard_address=None, set_as_default=False)
    except (OSError, ValueError) as error:
        raise LaunchError(f"--on dask:{run.address}: no scheduler of Dask answers there ({error})") from error
    with client:
        # A part that starts again is a new task, whose result is not that of the one before: not `pure`.
        executor = client.get_executor(pure=False)
        try:
            yield lambda parts: [executor.submit(run_part, part) for part in parts]
        finally:
            executor.shutdown(wait=False)
