"""The tokens of the next steps, fetched while earlier ones are read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from recipe_core import DataError, Run
from recipe_core.files.objects.ranges import Range
from recipe_megatron_gpt.data.order import Indices, Order
from recipe_megatron_gpt.data.remote.tokens import Blocks, ObjectTokens

STEPS = 2
"""Steps that are fetched before they are read, as far as the memory allows."""
_CAUTION = 64
"""Reads after an unexpected one that are fetched alone."""


@dataclass
class _Span:
    """Samples of one split whose tokens are fetched together: this rank's share of a step."""

    split: str
    first: int
    stop: int
    ranges: dict[ObjectTokens, list[Range]]
    """Bytes of each object."""
    blocks: Future[dict[ObjectTokens, Blocks]] = field(default_factory=Future)
    unread: int = 0

    def __post_init__(self) -> None:
        self.unread = self.stop - self.first

    @property
    def bytes(self) -> int:
        return sum(stop - start for ranges in self.ranges.values() for start, stop in ranges)

    def covers(self, split: str, start: int, count: int) -> bool:
        return split == self.split and self.first <= start and start + count <= self.stop

    def fetch(self) -> None:
        """Fetch everything; for a thread."""
        try:
            self.blocks.set_result({tokens: tokens.fetch(ranges) for tokens, ranges in self.ranges.items()})
        except BaseException as error:
            self.blocks.set_exception(error)


class Ahead:
    """Fetches what reads need, one step of this rank at a time, and the next steps' in advance.

    Which samples a step has is a function of its number, so they are known in advance. After a read at another place
    (a batch that grows, a filter) reads are fetched alone for a while.

    Args:
        run: for the batch sizes, and this rank's share of them.
        order: returns the order of a split.
        memory: most bytes of all steps that are held.
    """

    def __init__(self, run: Run, order: Callable[[str], Order], memory: int) -> None:
        self._run, self._order, self._memory = run, order, memory
        self._spans: deque[_Span] = deque()
        self._caution = 0

    @contextmanager
    def present(self, split: str, start: int, count: int) -> Iterator[None]:
        """Have the tokens of these samples in memory within the block.

        Raises:
            DataError: they need more memory than is allowed.
            ObjectError: they cannot be fetched.
        """
        span = self._span(split, start, count)
        blocks = span.blocks.result()
        with ExitStack() as stack:
            for tokens, ranges in _by_object(self._order(split), start, count).items():
                stack.enter_context(tokens.present(ranges, blocks[tokens]))
            yield
        span.unread -= count

    def _span(self, split: str, start: int, count: int) -> _Span:
        while self._spans and not self._spans[0].covers(split, start, count):
            left = self._spans.popleft()
            if left.split == split and left.unread > 0:
                self._caution, self._spans = _CAUTION, deque()
        if not self._spans:
            self._spans.append(self._begin(split, start, self._length(split, start, count)))
        span = self._spans[0]
        self._caution = max(0, self._caution - 1)
        if split == "train" and not self._caution and span.unread == span.stop - span.first:
            self._fetch_ahead(span)
        return span

    def _length(self, split: str, start: int, count: int) -> int:
        # from the first of this rank's samples of a step to its last one
        batch = self._run.train.global_batch if split == "train" else self._run.train.eval_samples
        share = batch // self._run.dp_size * max(1, self._run.local_dp_ranks)
        return count if self._caution or share < count else min(share, max(count, self._end(split) - start))

    def _end(self, split: str) -> int:
        train = self._run.train
        if split != "train":
            return train.eval_samples
        return min(train.steps, train.stop_after or train.steps) * train.global_batch

    def _fetch_ahead(self, current: _Span) -> None:
        batch = self._run.train.global_batch
        for number in range(1, STEPS + 1):
            first = current.first + number * batch
            if len(self._spans) > number:
                continue
            if first + current.stop - current.first > self._end("train"):
                return
            span = self._planned("train", first, current.stop - current.first)
            if sum(one.bytes for one in self._spans) + span.bytes > self._memory:
                return
            self._start(span)
            self._spans.append(span)

    def _begin(self, split: str, start: int, count: int) -> _Span:
        span = self._planned(split, start, count)
        if span.bytes > self._memory:
            raise DataError(
                f"data.fetch_memory: one step of this process needs {span.bytes / 1e6:,.1f} MB from object storage "
                f"(samples {start:,} to {start + count - 1:,}), more than the {self._memory / 1e6:,.1f} MB allowed; "
                f"set data.fetch_memory={-(-span.bytes // 10**6)} or more, or take a smaller train.global_batch"
            )
        self._start(span)
        return span

    def _planned(self, split: str, start: int, count: int) -> _Span:
        ranges = _by_object(self._order(split), start, count)
        return _Span(split, start, start + count, {tokens: tokens.needed(parts) for tokens, parts in ranges.items()})

    def _start(self, span: _Span) -> None:
        # a daemon: the end of a run does not wait for tokens that are not read
        threading.Thread(target=span.fetch, name="objects", daemon=True).start()


def _by_object(order: Order, start: int, count: int) -> dict[ObjectTokens, list[Range]]:
    which: Indices = np.arange(start, start + count)
    found: dict[ObjectTokens, list[Range]] = {}
    for file, ranges in order.needs(which):
        if file.source is not None:
            parts = ((first, stop) for first, stop in ranges.tolist() if first < stop)  # documents may be empty
            found.setdefault(file.source, []).extend(parts)
    return found
