"""Which samples each rank reads."""

import threading
from pathlib import Path

import pytest
import torch

from recipe_core import Train
from recipe_core.layouts.parallel import Batch, Run
from recipe_core.train.feed import Feed, micro_batch_starts


def run(rank: int = 0, size: int = 1) -> Run:
    return Run(
        device=torch.device("cpu"), mesh=None, rank=rank, world_size=size, local_rank=rank, dp_rank=rank, dp_size=size,
        train=Train(global_batch=12, micro_batch=2), cache=Path(),
    )  # fmt: skip


class Numbers:
    """Gives the numbers of its samples and remembers who asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.threads: set[str] = set()

    def read(self, split: str, start: int, count: int) -> Batch:
        self.asked.append((split, start))
        self.threads.add(threading.current_thread().name)
        if start >= 24:
            raise ValueError("no such sample")
        return {"number": torch.arange(start, start + count)}


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_ranks_share_each_step_without_gap_or_overlap(size: int) -> None:
    seen = [s + i for rank in range(size) for s in micro_batch_starts(run(rank, size), 12, 12) for i in range(2)]
    assert sorted(seen) == list(range(12, 24))


def test_a_rank_reads_its_part_in_one_piece() -> None:
    assert [micro_batch_starts(run(rank, 3), 12, 12) for rank in range(3)] == [[12, 14], [16, 18], [20, 22]]


def test_reads_one_step_ahead_and_stops_at_the_last() -> None:
    numbers = Numbers()
    with Feed(numbers.read, run()) as feed:
        assert torch.cat([b["number"] for b in feed.step(0)[0]]).tolist() == list(range(12))
        batches, firsts = feed.step(12, last=True, keep=True)
        assert torch.cat([b["number"] for b in batches]).tolist() == list(range(12, 24))
        assert [int(b["number"][0]) for b in batches] == firsts
        assert feed.last_micro_batch is not None
        assert int(feed.last_micro_batch[0]["number"][0]) == feed.last_micro_batch[1] == 12
    assert numbers.asked == [("train", s) for s in range(0, 24, 2)]


def test_one_thread_reads_everything() -> None:
    numbers = Numbers()
    with Feed(numbers.read, run()) as feed:
        feed.step(0)
        assert feed.validation(4)["number"].tolist() == [4, 5]
    assert len(numbers.threads) == 1


def test_an_error_in_the_thread_reaches_the_loop() -> None:
    with Feed(Numbers().read, run()) as feed, pytest.raises(ValueError, match="no such sample"):
        feed.step(24)


def test_narrow_integers_become_int64_on_the_device() -> None:
    class Narrow:
        def read(self, split: str, start: int, count: int) -> Batch:
            kinds = (torch.int8, torch.int32, torch.bool, torch.float32)
            return {str(kind): torch.ones(count, dtype=kind) for kind in kinds}

    with Feed(Narrow().read, run()) as feed:
        batch = feed.step(0, last=True)[0][0]
    assert [str(v.dtype) for v in batch.values()] == ["torch.int64", "torch.int64", "torch.bool", "torch.float32"]
