"""Mixtures in exact proportions, and changes with random numbers of each sample."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from recipe_core.errors import DataError
from recipe_core.layouts.parallel import Batch
from recipe_core.layouts.samples.mapping import MappedSamples, SampleGenerators
from recipe_core.layouts.samples.mixture import MixedSamples, interleaved


class Numbers:
    """Sample n is ``first + n``."""

    def __init__(self, first: int, **more: Tensor) -> None:
        self.first, self.more = first, more

    def read(self, split: str, start: int, count: int) -> Batch:
        rows = torch.arange(self.first + start, self.first + start + count)
        return {"n": rows, **{name: row.expand(count, *row.shape).clone() for name, row in self.more.items()}}


@pytest.mark.parametrize("counts", [[3, 1], [1, 1, 1], [5, 3, 2], [97, 2, 1], [1], [4321, 2000, 3679]])
def test_each_beginning_has_its_proportions(counts: list[int]) -> None:
    choices = interleaved(np.array(counts))
    assert np.bincount(choices).tolist() == counts
    taken = np.cumsum(choices[:, None] == np.arange(len(counts)), axis=0)
    shares = np.arange(1, len(choices) + 1)[:, None] * np.array(counts) / sum(counts)
    assert np.abs(taken - shares).max() < 1  # nowhere a sample apart


def test_each_part_is_read_in_its_order() -> None:
    counts = {"a": 5, "b": 3, "c": 2}
    mixed = MixedSamples({"a": Numbers(0), "b": Numbers(1000), "c": Numbers(2000)}, counts)
    whole = mixed.read("train", 0, 200)["n"]
    for first, count in zip((0, 1000, 2000), counts.values(), strict=True):
        own = whole[(whole >= first) & (whole < first + 1000)]
        assert own.tolist() == list(range(first, first + 20 * count))
    draw = random.Random(0)
    for _ in range(30):
        start, count = draw.randrange(150), draw.randrange(1, 50)
        assert torch.equal(mixed.read("train", start, count)["n"], whole[start : start + count])


def test_only_what_all_parts_give_is_mixed() -> None:
    parts = {"a": Numbers(0, x=torch.ones(3), y=torch.ones(1)), "b": Numbers(9, x=torch.zeros(3))}
    mixed = MixedSamples(parts, {"a": 1, "b": 1})
    assert list(mixed.read("train", 0, 1)) == ["n", "x"]
    assert mixed.read("train", 0, 3)["x"].tolist() == [[1.0] * 3, [0.0] * 3, [1.0] * 3]


def test_widths_of_integers_may_differ() -> None:
    mixed = MixedSamples(
        {"a": Numbers(0, x=torch.tensor(3, dtype=torch.int16)), "b": Numbers(0, x=torch.tensor(70_000))},
        {"a": 1, "b": 1},
    )
    assert mixed.read("train", 0, 2)["x"].tolist() == [3, 70_000]


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (torch.ones(3), torch.ones(4), "data.parts: 'x' has shape [3] in one dataset and [4] in another; give"),
        (
            torch.ones(3), torch.ones(3, dtype=torch.int64),
            "data.parts: 'x' is torch.float32 in one dataset and torch.int64 in another; a data wrapper around",
        ),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(one: Tensor, two: Tensor, said: str) -> None:
    mixed = MixedSamples({"a": Numbers(0, x=one), "b": Numbers(0, x=two)}, {"a": 1, "b": 1})
    with pytest.raises(DataError) as error:
        mixed.read("train", 0, 2)
    assert str(error.value).startswith(said)


class Words:
    def read(self, split: str, start: int, count: int) -> Batch:
        return {"words": torch.ones(count, 2)}


def test_parts_without_a_tensor_in_common_are_refused() -> None:
    with pytest.raises(DataError) as error:
        MixedSamples({"a": Numbers(0), "b": Words()}, {"a": 1, "b": 1}).read("train", 0, 1)
    assert str(error.value) == (
        "data.parts: the datasets have no tensor in common (a: n; b: words); mix those that belong together"
    )


def noise(batch: Batch, generators: SampleGenerators) -> Batch:
    assert len(generators) == len(batch["n"])
    return {**batch, "noise": generators.rand(4), "word": generators.randint(1000, 2)}


def test_random_numbers_belong_to_the_sample() -> None:
    mapped = MappedSamples(Numbers(0), noise, "1234 mask")
    whole = mapped.read("train", 0, 64)
    assert whole["noise"].unique().numel() > 250
    for start, count in itertools.product((0, 7, 40), (1, 5, 24)):
        part = mapped.read("train", start, count)
        assert all(torch.equal(part[name], whole[name][start : start + count]) for name in whole)
    others = (("1234 mask", "valid"), ("1234 other", "train"), ("1235 mask", "train"))
    for seed, split in others:
        assert not torch.equal(MappedSamples(Numbers(0), noise, seed).read(split, 0, 64)["noise"], whole["noise"])


def test_a_change_in_place_does_not_reach_the_dataset() -> None:
    kept = {"n": torch.arange(4)}

    class Kept:
        def read(self, split: str, start: int, count: int) -> Batch:
            return kept

    def change(batch: Batch, generators: SampleGenerators) -> Batch:
        batch["n"] += 1
        batch["more"] = batch.pop("n")
        return batch

    mapped = MappedSamples(Kept(), change, "")
    assert mapped.read("train", 0, 4)["more"].tolist() == mapped.read("train", 0, 4)["more"].tolist() == [1, 2, 3, 4]
