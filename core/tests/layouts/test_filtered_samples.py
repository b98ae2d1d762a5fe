"""A filter: sample n is the n-th accepted one, wherever reading begins, from an index that is built once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from recipe_core.data.filtered import Filtered
from recipe_core.errors import ConfigError, DataError, PluginError
from recipe_core.hooks.specs.wrapper import DataWrapperSpec
from recipe_core.layouts.parallel import Batch
from recipe_core.layouts.samples.counted import build, counted
from recipe_core.layouts.samples.filtering import LIMIT, FilteredSamples, gathered, joined, stretch

SPEC = DataWrapperSpec(name="some", build="test:build")


class Numbers:
    """Sample n is n; ``reads`` are the ranges that were read."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []

    def read(self, split: str, start: int, count: int) -> Batch:
        self.reads.append((start, count))
        return {
            "n": torch.arange(start, start + count),
            "pairs": torch.arange(2 * start, 2 * (start + count)).view(-1, 2),
        }


def samples(folder: Path, keep: Callable[[Tensor], Tensor], below: Numbers | None = None) -> FilteredSamples:
    return FilteredSamples(
        below or Numbers(), lambda batch: keep(batch["n"]), SPEC, folder, lambda split: f"key-{split}"
    )


def test_stretches_follow_each_other() -> None:
    ends = [0]
    for number in range(12):
        first, end = stretch(number)
        assert first == ends[-1]
        assert end - first <= 16_384
        ends.append(end)
    assert ends[:9] == [0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]


@pytest.mark.parametrize("share", [2, 3, 50, 1])
def test_sample_n_is_the_nth_accepted_one(tmp_path: Path, share: int) -> None:
    """In 40,000 samples, of which a hash takes one of ``share``."""

    def keep(numbers: Tensor) -> Tensor:
        return (numbers * 2_654_435_761 >> 7) % share == 0

    every = torch.arange(40_000)
    accepted = every[keep(every)]
    draw = random.Random(share)
    for _ in range(12):
        start, count = draw.randrange(len(accepted) - 40), draw.randrange(1, 40)
        batch = samples(tmp_path / str(draw.random()), keep).read("train", start, count)  # each with an empty cache
        assert torch.equal(batch["n"], accepted[start : start + count])
        assert torch.equal(batch["pairs"], torch.stack([2 * batch["n"], 2 * batch["n"] + 1], dim=-1))


def test_the_index_is_built_once(tmp_path: Path) -> None:
    first, second, third = Numbers(), Numbers(), Numbers()
    samples(tmp_path, lambda n: n % 2 == 0, first).read("train", 300, 4)
    assert first.reads[-1] == (600, 7)
    assert [count for _, count in first.reads[:-1]] == [256] * 4  # the stretches up to 1,024
    samples(tmp_path, lambda n: n % 2 == 0, second).read("train", 300, 4)
    assert second.reads == [(600, 7)]
    samples(tmp_path, lambda n: n % 2 == 0, third).read("valid", 0, 2)
    assert third.reads == [(0, 256), (0, 3)]


def test_a_damaged_stretch_is_built_again(tmp_path: Path) -> None:
    samples(tmp_path, lambda n: n % 2 == 0).read("train", 0, 4)
    (file,) = tmp_path.rglob("*.npy")
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    assert samples(tmp_path, lambda n: n % 2 == 0).read("train", 0, 4)["n"].tolist() == [0, 2, 4, 6]
    assert file.read_bytes() == whole


def test_a_filter_that_accepts_nothing_ends(tmp_path: Path) -> None:
    below = Numbers()
    with pytest.raises(ConfigError) as error:
        samples(tmp_path / "none", lambda n: n < 0, below).read("train", 0, 1)
    assert str(error.value) == (
        "wrapper.some: data wrapper 'some' accepts none of 65,536 samples in a row; change its settings, or leave it "
        "out of data.wrappers"
    )
    assert sum(count for _, count in below.reads) == LIMIT
    few = samples(tmp_path / "few", lambda n: n < 3)
    assert few.read("train", 0, 3)["n"].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="accepts none of"):
        few.read("train", 3, 1)
    rare = samples(tmp_path / "rare", lambda n: n % 60_000 == 59_999)
    assert rare.read("train", 0, 3)["n"].tolist() == [59_999, 119_999, 179_999]


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (torch.ones(3, dtype=torch.bool), "torch.bool [3]"),
        (torch.ones(256), "torch.float32 [256]"),
        (torch.ones(256, 1, dtype=torch.bool), "torch.bool [256, 1]"),
        (None, "None"),
    ],
)
def test_a_filter_must_answer_for_each_sample(tmp_path: Path, answer: Tensor, got: str) -> None:
    with pytest.raises(PluginError) as error:
        samples(tmp_path, lambda n: answer).read("train", 0, 1)
    assert str(error.value) == (
        f"data wrapper 'some': 'test:build': its filter returned {got}; expected a bool tensor [256], one for each "
        "sample"
    )


def test_few_reads_gather_many_samples() -> None:
    below = Numbers()
    assert gathered(below, "train", [5, 6, 8])["n"].tolist() == [5, 6, 8]
    assert below.reads == [(5, 4)]
    below.reads.clear()
    assert gathered(below, "train", [5, 6, 80, 81, 82, 200])["n"].tolist() == [5, 6, 80, 81, 82, 200]
    assert below.reads == [(5, 2), (80, 3), (200, 1)]


def test_samples_of_different_lengths_make_no_batch() -> None:
    with pytest.raises(DataError) as error:
        joined([{"t": torch.ones(1, 4)}, {"t": torch.ones(1, 5)}])
    assert str(error.value) == (
        "data: samples have 't' of shapes [4] and [5], which make no batch; a dataset that is filtered must pad all "
        "its samples to one length"
    )


def test_values_are_counted() -> None:
    values = torch.tensor([[5, 5, 0, 7], [0, 0, 0, 0], [1, 2, 3, 4]])
    assert counted(values, 0, different=False).tolist() == [3, 0, 4]
    assert counted(values, 0, different=True).tolist() == [2, 0, 4]
    draw = np.random.default_rng(0).integers(0, 6, (50, 9))
    expected = [len(set(row) - {2}) for row in draw.tolist()]
    assert counted(torch.from_numpy(draw), 2, different=True).tolist() == expected


class Plain:
    """A run of a wrapper that keeps the filter."""

    def filtered(self, samples: object, keep: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
        return keep


def test_the_core_filter_keeps_between_least_and_most() -> None:
    keep = build(Filtered(least=1, most=2), Numbers(), Plain())  # type: ignore[arg-type]
    assert keep({"t": torch.tensor([[0, 0, 0], [0, 4, 0], [4, 4, 0], [4, 4, 4]])}).tolist() == [
        False,
        True,
        True,
        False,
    ]  # type: ignore[operator]
    keep = build(Filtered(tensor="label", padding=-1), Numbers(), Plain())  # type: ignore[arg-type]
    assert keep({"t": torch.ones(2, 3), "label": torch.tensor([-1, 1])}).tolist() == [False, True]  # type: ignore[operator]
    with pytest.raises(ConfigError) as error:
        build(Filtered(tensor="v"), Numbers(), Plain())({"t": torch.ones(2), "u": torch.ones(2)})  # type: ignore[arg-type, operator]
    assert str(error.value) == "wrapper.filtered.tensor: expected one of the dataset's tensors (t, u), got 'v'"
