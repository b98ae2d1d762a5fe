"""The executor ``ray``: each part is a task of Ray Core."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from recipe_core import ExecutorRun, LaunchError, NoSettings, PartTask, Submit
from recipe_core.data.prepare import run_part
from recipe_core.launch.cores import usable_cores

_SECONDS = 10.0
"""Time limit for an answer of a cluster."""


@contextmanager
def tasks(config: NoSettings, run: ExecutorRun) -> Iterator[Submit]:
    """Connect to the cluster at ``run.address``; without an address, start a Ray here, and end it afterwards.

    Raises:
        LaunchError: Ray is not installed, or does not answer at the address.
    """
    ray = _connected(run)
    # No retries by Ray: the core starts lost parts again, and says so. Ray places them elsewhere then.
    remote = ray.remote(num_cpus=run.cpus, max_retries=0)(run_part)
    started: list[Any] = []

    def submit(parts: Sequence[PartTask]) -> list[Future[int]]:
        references = [remote.options(name=f"{run.name}-{part.number}").remote(part) for part in parts]
        started.extend(references)
        return [_plain(reference.future()) for reference in references]

    try:
        yield submit
    finally:
        for reference in started:
            ray.cancel(reference, force=True)  # nothing happens to those that have ended
        ray.shutdown()


def _connected(run: ExecutorRun) -> Any:
    try:
        import ray
    except ImportError as error:
        raise LaunchError(
            f"--on ray: Ray cannot be imported ({error}); python -m pip install 'ray>=2.40', which recipe-ray requires"
        ) from error
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if run.address:
        _require_answer(run.address)
        options |= {"address": run.address}
    else:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would send statistics
        cpus = max(usable_cores(), run.cpus)
        options |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except Exception as error:  # of many classes
        if run.address:
            raise _unreachable(run.address, error) from error
        raise LaunchError(f"--on ray: Ray does not start on this machine ({_first_line(error)})") from error
    signal.signal(signal.SIGTERM, handler)  # Ray's own would end this process without a message
    return ray


def _require_answer(address: str) -> None:
    # Ray itself tries for minutes, and logs each attempt.
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():  # not `auto`
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"--on ray:{address}: no Ray cluster can be reached there ({_first_line(error)}); `ray start --head` starts "
        "one, and `--on ray` without an address one for this command alone"
    )


def _plain(future: Future[int]) -> Future[int]:
    """Return the same future, whose errors have messages of one line: Ray's hold the traceback of the worker."""
    plain: Future[int] = Future()

    def end(ended: Future[int]) -> None:
        try:
            plain.set_result(ended.result())
        except Exception as error:
            cause = getattr(error, "cause", None)  # of RayTaskError: what the task itself raised
            plain.set_exception(cause if isinstance(cause, Exception) else LaunchError(f"lost: {_first_line(error)}"))

    future.add_done_callback(end)
    return plain


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
