"""Run a function on several ranks."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from recipe_core.testing import forks


def spawn(function: Callable[..., Any], processes: int, *args: Any, timeout: float = forks.DEADLINE) -> list[Any]:
    """Call ``function(*args)`` on ``processes`` ranks of this machine; return the results in rank order.

    The ranks have the environment of ``recipe run --processes``, so that ``recipe_core.engine.protocol.start`` creates
    their process group (gloo, loopback only). Define the function at the top level of a test file; arguments and
    results must be picklable.

    Raises:
        AssertionError: a rank failed (with its traceback) or took longer than ``timeout`` seconds.
    """
    context = forks.context()
    where = (inspect.getsourcefile(function) or "", function.__qualname__)
    with tempfile.TemporaryDirectory() as folder:
        readers, workers = [], []
        for rank in range(processes):
            reader, writer = context.Pipe(duplex=False)
            environment = {**os.environ, **_environment(rank, processes, Path(folder) / "store")}
            worker = context.Process(target=_work, args=(where, args, environment, writer), daemon=True)
            worker.start()
            writer.close()
            readers.append(reader)
            workers.append(worker)
        try:
            return _collect(readers, time.monotonic() + timeout)
        finally:
            for worker in workers:
                worker.join(5)
                if worker.is_alive():
                    worker.kill()
                    worker.join()


def _environment(rank: int, processes: int, store: Path) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "RECIPE_STORE": str(store),
        "OMP_NUM_THREADS": "1",
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }


def _collect(readers: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(readers):
        waiting = {r: i for i, r in enumerate(readers) if i not in results}
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"ranks {sorted(waiting.values())} gave no result in time")
        for reader in ready:
            assert isinstance(reader, Connection)
            rank = waiting[reader]
            try:
                failure, results[rank] = reader.recv()
            except EOFError:
                failure = "the process ended without a result"
            if failure:
                raise AssertionError(f"rank {rank}: {failure}")
    return [results[rank] for rank in range(len(readers))]


def _work(where: tuple[str, str], args: tuple[Any, ...], environment: dict[str, str], writer: Connection) -> None:
    """Run in the child; the function is found by its file, since a test module has no importable name."""
    forks.enter(environment)
    try:
        path, name = where
        spec = importlib.util.spec_from_file_location("spawned_" + Path(path).stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        function: Any = module
        for part in name.split("."):
            function = getattr(function, part)
        writer.send((None, function(*args)))
    except BaseException:
        writer.send((traceback.format_exc(), None))
