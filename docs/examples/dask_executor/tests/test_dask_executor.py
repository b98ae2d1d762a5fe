"""Dask runs parts on workers of this machine and on those of a scheduler; parts whose worker is killed start again."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from recipe_core import ExecutorRun, LaunchError, PartTask
from recipe_core.testing import PluginConformance

distributed = pytest.importorskip("distributed", reason="distributed is not installed")
pytest.importorskip("recipe_dask.plugin", reason="the example is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # Dask's own


class TestDask(PluginConformance):
    plugin = "recipe_dask.plugin"


def task(folder: Path, number: int, *words: str) -> PartTask:
    return PartTask(number=number, arguments=words, folder=folder, log=folder / f"{number}.log")


def test_a_scheduler_whose_worker_is_killed(tmp_path: Path) -> None:
    """Dask itself gives the task to another worker."""
    from recipe_dask.executor import tasks
    from recipe_dask.plugin import Dask

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        run = ExecutorRun(name="made", address=cluster.scheduler_address, folder=tmp_path)
        with tasks(Dask(), run) as submit:
            futures: list[Future[int]] = [*submit([task(tmp_path, 1, "ls"), task(tmp_path, 2, "--version")])]
            deadline = time.monotonic() + 60
            while not (tmp_path / "1.log").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            for nanny in [*cluster.workers.values()][:1]:
                os.kill(nanny.pid, signal.SIGKILL)
            assert futures[1].result(timeout=100) == 0
            assert futures[0].result(timeout=100) in (0, 1)  # `recipe ls` ends with 1 if a plugin does not load


def test_a_scheduler_that_does_not_answer(tmp_path: Path) -> None:
    from recipe_dask.executor import tasks
    from recipe_dask.plugin import Dask

    run = ExecutorRun(name="made", address="tcp://127.0.0.1:1", folder=tmp_path)
    with pytest.raises(LaunchError, match="no scheduler of Dask answers there"), tasks(Dask(seconds=0.5), run):
        pass
