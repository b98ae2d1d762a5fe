"""An ordered map over worker processes that says which item killed a worker."""

from __future__ import annotations

import multiprocessing
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from recipe_core.errors import DataError, RecipeError

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3
"""Items per worker that may be under way or waiting for an earlier one: what bounds the memory."""


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, describe: Callable[[Item], str]
) -> Iterator[Result]:
    """Yield ``function(item)`` of each item, in the order of the items, computed by ``workers`` processes.

    With fewer than two workers everything happens in this process. Function, items and results must be picklable; the
    function may hold what it needs once per worker (it is sent once).

    Raises:
        DataError: a worker died, or the function raised; the message says on which item (``describe(item)``).
        RecipeError: as the function raised it.
    """
    if workers < 2:
        for item in items:
            yield _call(function, item, describe)
        return
    pool = _Pool(function, workers, describe)
    try:
        yield from pool.run(iter(items))
    finally:
        pool.close()


@dataclass
class _Job(Generic[Item]):
    """An item, and its result once it is there."""

    item: Item
    done: bool = False
    result: Any = None


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: _Job[Any] | None = field(default=None)


class _Pool:
    """Worker processes that each hold one item at a time; a pipe each, so that a death is seen at once."""

    def __init__(self, function: Callable[[Any], Any], workers: int, describe: Callable[[Any], str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.describe = describe
        self.workers: list[_Worker] = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(function, theirs), daemon=True)
            process.start()
            theirs.close()
            self.workers.append(_Worker(process, ours))

    def run(self, items: Iterator[Any]) -> Iterator[Any]:
        queue: deque[_Job[Any]] = deque()
        exhausted = False
        while True:
            idle = [w for w in self.workers if w.job is None]
            while idle and not exhausted and len(queue) < AHEAD * len(self.workers):
                try:
                    job = _Job(next(items))
                except StopIteration:
                    exhausted = True
                    break
                queue.append(job)
                self._send(idle.pop(), job)
            while queue and queue[0].done:
                yield queue.popleft().result
            if exhausted and not queue:
                return
            if not exhausted and any(w.job is None for w in self.workers) and len(queue) < AHEAD * len(self.workers):
                continue
            self._receive()

    def _send(self, worker: _Worker, job: _Job[Any]) -> None:
        worker.job = job
        try:
            worker.pipe.send(job.item)
        except (BrokenPipeError, ConnectionResetError):
            self._died(worker)

    def _receive(self) -> None:
        """Wait for at least one result."""
        busy = {w.pipe: w for w in self.workers if w.job is not None}
        for pipe in wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            assert worker.job is not None
            try:
                error, result = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                self._died(worker)
            if isinstance(error, RecipeError):
                raise error
            if error is not None:
                raise DataError(f"{self.describe(worker.job.item)}: {error}")
            worker.job.result, worker.job.done, worker.job = result, True, None

    def _died(self, worker: _Worker) -> None:
        worker.process.join(5)
        code = worker.process.exitcode
        what = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        hint = "; out of memory is the usual cause: use fewer workers" if code == -9 else ""
        assert worker.job is not None
        raise DataError(f"a worker {what} while it worked on {self.describe(worker.job.item)}{hint}")

    def close(self) -> None:
        """End the workers: politely when they wait for work, else at once."""
        for worker in self.workers:
            worker.pipe.close()
            if worker.job is not None:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _serve(function: Callable[[Any], Any], pipe: Connection) -> None:
    """In a worker: answer every item until the pipe is closed."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        error: RecipeError | str | None = None
        result = None
        try:
            result = function(item)
        except RecipeError as mistake:
            error = mistake
        except Exception:
            error = traceback.format_exc()
        pipe.send((error, result))


def _call(function: Callable[[Item], Result], item: Item, describe: Callable[[Item], str]) -> Result:
    try:
        return function(item)
    except RecipeError:
        raise
    except Exception as error:
        raise DataError(f"{describe(item)}: {type(error).__name__}: {error}") from error
