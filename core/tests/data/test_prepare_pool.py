"""The ordered map over worker processes."""

from __future__ import annotations

import multiprocessing
import operator
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe_core.data.prepare import WorkerDiedError, fitting, ordered_map, pool
from recipe_core.data.prepare.pool import AHEAD
from recipe_core.errors import ConfigError, DataError

MODULE = """
import os, time
from recipe_core.errors import ConfigError
from recipe_core.data.prepare import working_on

def square(item):
    # Item 0 takes until another process has begun with one, so that results come out of order.
    number, folder = item
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + 120
    while number == 0 and len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline, "no other process takes part"
        time.sleep(0.01)
    return number * number, os.getpid()

def documents(chunk):
    for document in chunk:
        working_on(f"{document} of the file")
        if document == "deadly":
            os.kill(os.getpid(), 9)
        if document == "leaving":
            os._exit(7)
        if document == "broken":
            raise KeyError("no such thing")
        if document == "wrong":
            raise ConfigError("wrong: expected right")
    return len(chunk)
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that worker processes can import, as they can no test module."""
    (tmp_path / "functions_of_this_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import functions_of_this_test

    return functions_of_this_test


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def test_results_come_in_the_order_of_the_items_from_several_processes(functions: Any, tmp_path: Path) -> None:
    folder = tmp_path / "processes"
    folder.mkdir()
    found = list(ordered_map(functions.square, [(number, folder) for number in range(20)], 2, str))
    assert [square for square, _ in found] == [item * item for item in range(20)]
    processes = {process for _, process in found}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_one_worker_is_this_process(functions: Any, tmp_path: Path) -> None:
    items = [(3, tmp_path), (4, tmp_path)]
    assert list(ordered_map(functions.square, items, 1, str)) == [(9, os.getpid()), (16, os.getpid())]
    assert list(ordered_map(functions.square, [], 2, str)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_items_are_taken_as_they_are_needed(workers: int) -> None:
    items = iter(range(1000))
    found = ordered_map(operator.neg, items, workers, str)
    assert [next(found) for _ in range(10)] == list(range(0, -10, -1))
    assert next(items) <= 10 + AHEAD * workers
    found.close()  # type: ignore[attr-defined]  # it is a generator; the workers end with it


DEATHS: list[tuple[list[str], type[DataError] | type[ConfigError], str]] = [
    (["a", "deadly", "b"], WorkerDiedError, "was killed by signal 9 while it worked on deadly of the file; out of mem"),
    (["leaving"], WorkerDiedError, "a worker ended with exit code 7 while it worked on leaving of the file"),
    (["a", "broken"], DataError, "broken of the file: KeyError: 'no such thing'"),
    (["wrong"], ConfigError, "wrong: expected right"),
]


@pytest.mark.parametrize(("chunk", "kind", "message"), DEATHS)
def test_the_document_that_ended_a_worker_is_named(
    functions: Any, chunk: list[str], kind: type[Exception], message: str
) -> None:
    chunks = [["x"] * 3, ["y"], chunk, ["z"]]
    results: list[int] = []
    with pytest.raises(kind) as caught:
        results.extend(ordered_map(functions.documents, chunks, 2, str))
    assert message in str(caught.value)
    assert type(caught.value) is kind
    assert results in ([], [3], [3, 1])


@pytest.mark.parametrize(("chunk", "kind", "message"), DEATHS[2:])
def test_errors_in_this_process_read_the_same(
    functions: Any, chunk: list[str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        list(ordered_map(functions.documents, [chunk], 1, str))
    assert str(caught.value) == message


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_that_says_nothing_is_described_by_its_item(workers: int) -> None:
    describe: Callable[[object], str] = "item {}".format
    with pytest.raises(DataError, match=r"^item x: TypeError: bad operand"):
        list(ordered_map(operator.neg, [1, "x"], workers, describe))


def test_a_worker_that_dies_without_a_word_is_described_by_its_item() -> None:
    with pytest.raises(WorkerDiedError, match=r"killed by signal 9 while it worked on item 9; out of memory"):
        list(ordered_map(signal.raise_signal, [signal.SIGKILL], 2, "item {:d}".format))


def test_an_error_of_the_items_ends_the_workers() -> None:
    def items() -> Iterator[float]:
        yield 0.2
        raise DataError("damaged at byte 7")

    with pytest.raises(DataError, match="damaged at byte 7"):
        list(ordered_map(time.sleep, items(), 2, str))


def test_no_more_workers_are_started_than_there_are_items() -> None:
    found = ordered_map(operator.neg, [1, 2], 64, str)
    assert next(found) == -1
    assert len(multiprocessing.active_children()) == 2
    assert list(found) == [-2]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("workers", "size", "items", "used", "note"),
    [
        (0, 100, None, 4, ""),
        (0, 2.9, None, 2, ""),
        (0, 0, 0, 1, ""),
        (0, 100, 3, 3, ""),
        (3, 0, None, 3, ""),
        (64, 0, None, 4, "workers=64 is lowered to 4: 4 cores can be used here"),
        (64, 100, 2, 2, "workers=64 is lowered to 2: there is no work for more than 2"),
        (2, 100, 0, 1, "workers=2 is lowered to 1: there is no work for more than 1"),
    ],
)
def test_workers_are_no_more_than_help(
    workers: int, size: float, items: int | None, used: int, note: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    pool._print_once.cache_clear()
    assert [fitting(workers, size, items) for _ in range(2)] == [used, used]
    assert capsys.readouterr().err == (f"recipe prepare: {note}\n" if note else "")
