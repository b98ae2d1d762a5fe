"""An ordered map over worker processes that says which item, and which document in it, killed a worker.

Most preparations are small and need no other process, so what starts them is imported where that happens.
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

from recipe_core.errors import DataError, RecipeError
from recipe_core.launch.cores import usable_cores

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3
"""Items per worker that may be under way or waiting for an earlier one: what bounds the memory."""
_NOTE_BYTES = 500
_note: Any = ctypes.create_string_buffer(_NOTE_BYTES)
"""The item in work in this process; in a worker, memory that the parent can still read when the worker is gone."""


class WorkerDiedError(DataError):
    """A worker process was killed, or ended by itself. What was done before is good; the same run may go on there."""


def working_on(part: object) -> None:
    """Say, from inside the function of :func:`ordered_map`, which part of its item is next: a document, say.

    An error names that part then, instead of the whole item, even where the process is killed.
    """
    # The end may fall into the middle of a character; whoever reads it drops the rest of that one.
    _note.value = str(part).encode(errors="replace")[: _NOTE_BYTES - 1]


def fitting(workers: int, size: float, items: int | None = None) -> int:
    """Processes to use for work that keeps a core busy; a setting that asks for more is reported once.

    Args:
        workers: the setting; 0 leaves it open.
        size: how many processes the work is worth: what one costs to start, it must save.
        items: pieces that the work comes in, where that is known.
    """
    cores = usable_cores()
    if not workers:
        return max(1, min(cores, int(size), items or cores))
    used = max(1, min(workers, cores, workers if items is None else items))
    if used < workers:
        why = f"{cores} cores can be used here" if used == cores else f"there is no work for more than {used}"
        _tell(f"recipe prepare: workers={workers} is lowered to {used}: {why}")
    return used


@cache
def _tell(message: str) -> None:
    """Say it once, though several stages of a preparation may come to it."""
    print(message, file=sys.stderr)


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, describe: Callable[[Item], str]
) -> Iterator[Result]:
    """Yield ``function(item)`` of each item, in the order of the items, computed by ``workers`` processes.

    With fewer than two workers everything happens in this process. Function, items and results must be picklable; the
    function may hold what it needs once per worker (it is sent once). Items are taken as they are needed: at most
    :data:`AHEAD` per worker are held at a time. So are workers: no more are started than there are items.

    Raises:
        WorkerDiedError: a worker died; the message says on which item (``describe(item)``, or what the function told
            :func:`working_on`).
        DataError: the function raised something else than a RecipeError; the message names the item, too.
        RecipeError: as the function raised it.
    """
    if workers < 2:
        for item in items:
            yield _alone(function, item, describe)
        return
    pool = _Pool(function, workers, describe)
    try:
        yield from pool.run(iter(items))
    finally:
        pool.close()


def _alone(function: Callable[[Item], Result], item: Item, describe: Callable[[Item], str]) -> Result:
    _note.value = b""
    try:
        return function(item)
    except RecipeError:
        raise
    except Exception as error:
        raise DataError(f"{_noted(_note) or describe(item)}: {type(error).__name__}: {error}") from error


def _noted(note: Any) -> str:
    return bytes(note.value).decode(errors="ignore")


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
    note: Any
    """The item in work; memory that the worker shares with this process."""
    job: _Job[Any] | None = field(default=None)


@dataclass
class _Failure:
    """The message of a worker in place of a result."""

    error: RecipeError | None
    message: str
    trace: str


class _RemoteTraceback(Exception):
    """Traceback of a worker: the cause of the error that is raised here."""


class _Pool:
    """Worker processes that each hold one item at a time; a pipe each, so that a death is seen at once."""

    def __init__(self, function: Callable[[Any], Any], workers: int, describe: Callable[[Any], str]) -> None:
        import multiprocessing
        from multiprocessing import sharedctypes

        # Forking is no way: the libraries that tokenise start threads, and a forked child hangs on their locks.
        self.context = multiprocessing.get_context("spawn")
        self.shared = sharedctypes.RawArray
        self.function = function
        self.limit = workers
        self.describe = describe
        self.workers: list[_Worker] = []

    def run(self, items: Iterator[Any]) -> Iterator[Any]:
        """Hand the items out and yield their results in order."""
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
                yield queue.popleft().result  # and see to idle workers before the next one
            else:
                self._receive()

    def _has_room(self) -> bool:
        return len(self.workers) < self.limit or any(worker.job is None for worker in self.workers)

    def _idle(self) -> _Worker:
        """A worker that waits for an item, or a new one."""
        for worker in self.workers:
            if worker.job is None:
                return worker
        ours, theirs = self.context.Pipe()
        note = self.shared(ctypes.c_char, _NOTE_BYTES)
        process = self.context.Process(target=_serve, args=(self.function, theirs, note), daemon=True)
        process.start()
        theirs.close()
        self.workers.append(_Worker(process, ours, note))
        return self.workers[-1]

    def _send(self, worker: _Worker, job: _Job[Any]) -> None:
        worker.job = job
        worker.note.value = b""
        try:
            worker.pipe.send(job.item)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._died(worker) from error

    def _receive(self) -> None:
        """Wait for at least one result, if any is under way."""
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
                what = _noted(worker.note) or self.describe(worker.job.item)
                raise (result.error or DataError(f"{what}: {result.message}")) from _RemoteTraceback(result.trace)
            worker.job.result, worker.job.done, worker.job = result, True, None

    def _died(self, worker: _Worker) -> WorkerDiedError:
        worker.process.join(5)
        code = worker.process.exitcode
        killed = code is not None and code < 0
        how = f"was killed by signal {-code}" if killed and code else f"ended with exit code {code}"
        hint = "; out of memory is the usual cause: use fewer workers" if code == -signal.SIGKILL else ""
        assert worker.job is not None
        what = _noted(worker.note) or self.describe(worker.job.item)
        return WorkerDiedError(f"a worker {how} while it worked on {what}{hint}")

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
            worker.process.close()


def _serve(function: Callable[[Any], Any], pipe: Connection, note: Any) -> None:
    """In a worker: answer every item until the pipe is closed."""
    global _note
    _note = note
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle
    while True:
        try:
            item = pipe.recv()
            pipe.send(_answer(function, item))
        except (EOFError, BrokenPipeError, ConnectionResetError):  # the parent wants no more, or is gone
            return


def _answer(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        return function(item)
    except RecipeError as mistake:
        return _Failure(mistake, "", traceback.format_exc())
    except Exception as error:
        return _Failure(None, f"{type(error).__name__}: {error}", traceback.format_exc())
