"""A plugin whose parts die on demand, and executors of every kind of fault."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

import dividing_data  # type: ignore[import-not-found]

from recipe_core import ConfigError, Dataset, ExecutorRun, ExecutorSpec, LaunchError, PartTask, Submit, hookimpl
from recipe_core.data.prepare import PreparePart, output, run_part
from recipe_core.data.prepare.executors.task import start_part

EXECUTORS = ("killing", "cancelling", "losing", "away", "mistaken", "numberless", "futureless")


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """One that divides, and one that does not."""
    capitals, *_ = dividing_data.register_datasets()
    yield replace(capitals, name="mortal", prepare_part="mortal_data:prepare_part")
    yield replace(capitals, name="undivided", prepare_part="", merge_parts="")


@hookimpl
def register_executors() -> Iterable[ExecutorSpec]:
    """All of them."""
    for name in EXECUTORS:
        yield ExecutorSpec(name=name, build=f"mortal_data:{name}", summary=name)


def prepare_part(settings: Any, part: PreparePart) -> Any:
    """Obey the files ``orders/K.*``: ``wait`` for ever, ``wrong``, ``vanish``, or die by a signal ``N``, once.

    ``late`` dies when all files of the part are there, and its lock and its journal too.
    """
    for order in sorted(Path("orders").glob(f"{part.number}.*")):
        what = order.suffix[1:]
        if what == "wait":
            order.with_suffix(".waits").write_text(str(os.getpid()))
            time.sleep(600)
        elif what == "wrong":
            raise ConfigError("lines.jsonl: is wrong")
        elif what == "vanish":
            os._exit(0)
        elif what == "late":
            output.clear_up = lambda folder: os.kill(os.getpid(), SIGKILL)
        elif what.isdecimal():
            order.unlink()
            os.kill(os.getpid(), int(what))
    return dividing_data.prepare_part("mortal", False, settings, part)


@contextmanager
def killing(config: Any, run: ExecutorRun) -> Iterator[Submit]:
    """Kill each process twice, at random moments."""
    draw, threads, starts = random.Random(1), ThreadPoolExecutor(3), Counter[int]()

    def run_and_kill(task: PartTask) -> int:
        starts[task.number] += 1
        process = start_part(task)
        killer = threading.Timer(draw.uniform(0, 1.5), process.kill)
        if starts[task.number] < 3:
            killer.start()
        code = process.wait()
        killer.cancel()
        return code

    yield lambda tasks: [threads.submit(run_and_kill, task) for task in tasks]
    threads.shutdown()


def _at_once(end: Callable[[Future[Any]], object]) -> Callable[[Any, ExecutorRun], AbstractContextManager[Submit]]:
    def submit(tasks: Sequence[PartTask]) -> list[Future[int]]:
        futures: list[Future[int]] = [Future() for _ in tasks]
        for future in futures:
            end(future)
        return futures

    @contextmanager
    def build(config: Any, run: ExecutorRun) -> Iterator[Submit]:
        yield submit

    return build


cancelling = _at_once(lambda future: future.cancel())
losing = _at_once(lambda future: future.set_exception(RuntimeError("the node is gone\nand more")))
numberless = _at_once(lambda future: future.set_result(None))


@contextmanager
def away(config: Any, run: ExecutorRun) -> Iterator[Submit]:
    """An engine that does not answer."""
    raise LaunchError(f"--on away:{run.address}: nothing answers there")
    yield


def mistaken(config: Any, run: Any) -> Any:
    """Has a misspelt name."""
    return run.adress


@contextmanager
def futureless(config: Any, run: ExecutorRun) -> Iterator[Any]:
    """Gives exit codes, and no futures."""
    yield lambda tasks: [run_part(task) for task in tasks]
