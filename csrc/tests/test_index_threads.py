"""The compiled functions let other Python threads run."""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

import recipe_index

COUNT = 2_000_000
NUMBERS = np.arange(COUNT, dtype=np.int32)


def document_order(megatron: bool) -> Callable[[], object]:
    return lambda: recipe_index.document_order(NUMBERS, 4, 1, False, megatron)


def shuffle_index() -> Callable[[], object]:
    return lambda: recipe_index.shuffle_index(4 * COUNT, 4 * COUNT, 1, True)


def sample_index() -> Callable[[], object]:
    sizes, order = np.ones(COUNT, dtype=np.int32), np.tile(NUMBERS, 4)
    return lambda: recipe_index.sample_index(sizes, order, 1, 4 * COUNT - 1)


def blending_index() -> Callable[[], object]:
    return lambda: recipe_index.blending_index(np.full(16, 1 / 16), COUNT)


def parse_idx() -> Callable[[], object]:
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 0, 8 * COUNT)
    data = np.frombuffer(header + bytes(64 * COUNT), dtype=np.uint8)
    return lambda: recipe_index.parse_idx(data)


def gather() -> Callable[[], object]:
    starts, sizes = np.zeros(1, dtype=np.int64), np.array([COUNT], dtype=np.int32)
    tokens, order = np.zeros(COUNT, dtype=np.uint16), np.zeros(1, dtype=np.int32)
    samples, which = np.zeros((2, 2), dtype=np.int32), np.zeros(10, dtype=np.int64)
    return lambda: recipe_index.gather(tokens, starts, sizes, order, samples, which, COUNT - 1, 5)


WORK = {
    "document_order": partial(document_order, False),
    "document_order_megatron": partial(document_order, True),
    "shuffle_index": shuffle_index,
    "sample_index": sample_index,
    "blending_index": blending_index,
    "parse_idx": parse_idx,
    "gather": gather,
}


@pytest.fixture
def no_switching() -> Iterator[None]:
    """Threads run until they give the lock away of themselves."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("prepare", WORK.values(), ids=WORK)
@pytest.mark.usefixtures("no_switching")
def test_another_thread_runs_meanwhile(prepare: Callable[[], Callable[[], object]]) -> None:
    """A function that kept the lock would let no other thread see a time from the middle of its work.

    On a busy machine the other thread may get no processor in that time, so there are several attempts.
    """
    work = prepare()
    assert any(seen_meanwhile(work) for _ in range(20))


def seen_meanwhile(work: Callable[[], object]) -> bool:
    """True if this thread runs in the middle of the time that ``work`` takes in another."""
    span: list[float] = []

    def timed() -> None:
        span.append(time.perf_counter())
        work()
        span.append(time.perf_counter())

    seen: list[float] = []
    thread = threading.Thread(target=timed)
    thread.start()
    while thread.is_alive():
        seen.append(time.perf_counter())
        time.sleep(0.0005)
    start, end = span
    fifth = (end - start) / 5
    return any(start + fifth < moment < end - fifth for moment in seen)
