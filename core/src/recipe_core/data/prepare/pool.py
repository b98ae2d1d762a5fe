"""An ordered map over worker processes that reports which item, and which document in it, killed a worker.

Most preparations are small and need no other process, so multiprocessing is imported only when it is used.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from recipe_core.errors import DataError, ExitCode, RecipeError
from recipe_core.launch.cores import usable_cores

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3
"""Number of items per worker that may be in progress or wait for an earlier one; bounds the memory."""
_NOTE_BYTES = 500
_note: Any = ctypes.create_string_buffer(_NOTE_BYTES)
"""The item that this process works on; in a worker, memory that the parent can read after the worker has died."""


class WorkerDiedError(DataError):
    """A worker process was killed or exited. Completed parts are valid; the same command continues after them."""

    exit_code = ExitCode.STOPPED


def working_on(part: object) -> None:
    """Name the part of the item, such as a document, that the function of :func:`ordered_map` works on next.

    Errors then name this part instead of the item, even if the process is killed.
    """
    # The end may be in the middle of a character, which the reader drops.
    _note.value = str(part).encode(errors="replace")[: _NOTE_BYTES - 1]


def fitting(workers: int, size: float, items: int | None = None) -> int:
    """Return the number of processes for CPU-bound work; a setting that exceeds it is reported once.

    Args:
        workers: the setting; 0 chooses automatically.
        size: largest number of processes whose start-up cost the work repays.
        items: number of items, if known.
    """
    cores = usable_cores()
    if not workers:
        return max(1, min(cores, int(size), items or cores))
    used = max(1, min(workers, cores, workers if items is None else items))
    if used < workers:
        why = f"{cores} cores can be used here" if used == cores else f"there is no work for more than {used}"
        _print_once(f"recipe prepare: workers={workers} is lowered to {used}: {why}")
    return used


@cache
def _print_once(message: str) -> None:
    # Several stages of a preparation may report the same.
    print(message, file=sys.stderr)


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, describe: Callable[[Item], str]
) -> Iterator[Result]:
    """Yield ``function(item)`` of each item, in the order of the items, computed by ``workers`` processes.

    With fewer than two workers, this process does everything. Function, items and results must be picklable; the
    function is sent once per worker and may hold shared data. Items are taken as needed: at most :data:`AHEAD` per
    worker are held at a time. No more workers are started than there are items.

    Raises:
        WorkerDiedError: a worker died; the message names the item (``describe(item)``, or the part that the function
            passed to :func:`working_on`).
        DataError: the function raised another exception than a RecipeError; the message names the item.
        RecipeError: the function raised it.
    """
    if workers < 2:
        for item in items:
            yield _call_here(function, item, describe)
        return
    pool = _Pool(function, workers, describe)
    try:
        yield from pool.run(iter(items))
    finally:
        pool.close()


def _call_here(function: Callable[[Item], Result], item: Item, describe: Callable[[Item], str]) -> Result:
    _note.value = b""
    try:
        return function(item)
    except RecipeError:
        raise
    except Exception as error:
        raise DataError(f"{_decode_note(_note) or describe(item)}: {type(error).__name__}: {error}") from error


def _decode_note(note: Any) -> str:
    return bytes(note.value).decode(errors="ignore")


@dataclass
class _Job(Generic[Item]):
    """An item and its result."""

    item: Item
    done: bool = False
    result: Any = None


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    note: Any
    """The item in progress; memory that the worker shares with this process."""
    job: _Job[Any] | None = field(default=None)


@dataclass
class _Failure:
    """Sent by a worker instead of a result."""

    error: RecipeError | None
    message: str
    trace: str


class _RemoteTraceback(Exception):
    """Traceback of a worker, the cause of the error in this process."""


class _Pool:
    """Worker processes with one item each at a time; a pipe per worker shows immediately when it dies."""

    def __init__(self, function: Callable[[Any], Any], workers: int, describe: Callable[[Any], str]) -> None:
        import multiprocessing
        from multiprocessing import sharedctypes

        # No fork: tokenizer libraries start threads, and a forked child hangs on their locks.
        self.context = multiprocessing.get_context("spawn")
        self.shared = sharedctypes.RawArray
        self.function = function
        self.limit = workers
        self.describe = describe
        self.workers: list[_Worker] = []

    def run(self, items: Iterator[Any]) -> Iterator[Any]:
        queue: deque[_Job[Any]] = deque()
        exhausted = False
        while queue or not exhausted:
            while not exhausted and len(queue) < AHEAD * self.limit and self._has_room():
                try:
                    queue.append(_Job(next(items)))
                except StopIteration:
                    exhausted = True
                else:
                    self._send(self._idle(), queue[-1])
            if queue and queue[0].done:
                yield queue.popleft().result  # and supply idle workers before the next one
            else:
                self._receive()

    def _has_room(self) -> bool:
        return len(self.workers) < self.limit or any(worker.job is None for worker in self.workers)

    def _idle(self) -> _Worker:
        for worker in self.workers:
            if worker.job is None:
                return worker
        pipe, worker_pipe = self.context.Pipe()
        note = self.shared(ctypes.c_char, _NOTE_BYTES)
        process = self.context.Process(target=_serve, args=(self.function, worker_pipe, note), daemon=True)
        process.start()
        worker_pipe.close()
        self.workers.append(_Worker(process, pipe, note))
        return self.workers[-1]

    def _send(self, worker: _Worker, job: _Job[Any]) -> None:
        worker.job = job
        worker.note.value = b""
        try:
            worker.pipe.send(job.item)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._died(worker) from error

    def _receive(self) -> None:
        from multiprocessing.connection import wait

        busy = {id(worker.pipe): worker for worker in self.workers if worker.job is not None}
        for pipe in wait([worker.pipe for worker in busy.values()]) if busy else ():
            worker = busy[id(pipe)]
            assert worker.job is not None
            try:
                result = worker.pipe.recv()
            except (EOFError, ConnectionResetError) as error:
                raise self._died(worker) from error
            if isinstance(result, _Failure):
                place = _decode_note(worker.note) or self.describe(worker.job.item)
                raise (result.error or DataError(f"{place}: {result.message}")) from _RemoteTraceback(result.trace)
            worker.job.result, worker.job.done, worker.job = result, True, None

    def _died(self, worker: _Worker) -> WorkerDiedError:
        worker.process.join(5)
        code = worker.process.exitcode
        killed = code is not None and code < 0
        end = f"was killed by signal {-code}" if killed and code else f"ended with exit code {code}"
        hint = "; out of memory is the usual cause: use fewer workers" if code == -signal.SIGKILL else ""
        assert worker.job is not None
        place = _decode_note(worker.note) or self.describe(worker.job.item)
        return WorkerDiedError(f"a worker {end} while it worked on {place}{hint}")

    def close(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
            if worker.job is not None:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()


def _serve(function: Callable[[Any], Any], pipe: Connection, note: Any) -> None:
    global _note
    _note = note
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    while True:
        try:
            item = pipe.recv()
            pipe.send(_answer(function, item))
        except (EOFError, BrokenPipeError, ConnectionResetError):  # the parent is done or has exited
            return


def _answer(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        return function(item)
    except RecipeError as error:
        return _Failure(error, "", traceback.format_exc())
    except Exception as error:
        return _Failure(None, f"{type(error).__name__}: {error}", traceback.format_exc())
