"""The order ``megatron`` is that of megatron-core, bit for bit."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import recipe_index

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def gpt_dataset() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # megatron-core warns of the optional packages it does without
        return pytest.importorskip("megatron.core.datasets.gpt_dataset", reason="needs megatron-core")


@pytest.fixture(scope="module")
def helpers(gpt_dataset: ModuleType) -> ModuleType:
    return pytest.importorskip("megatron.core.datasets.helpers", reason="needs megatron-core's compiled helpers")


def equal(ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("seed", [0, 1234, 2**32 - 1])
@pytest.mark.parametrize(("epochs", "separate"), [(1, False), (1, True), (3, False), (3, True)])
@pytest.mark.parametrize("sequence", [1, 64, 4096])
def test_the_three_indices(
    gpt_dataset: ModuleType, helpers: ModuleType, seed: int, epochs: int, separate: bool, sequence: int
) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 300, 4000).astype(np.int32)
    sizes[:3] = 0, 50_000, 0
    documents = np.sort(random.choice(4000, 3000, replace=False)).astype(np.int32)
    tokens = int(sizes[documents].sum())

    state = np.random.RandomState(seed)
    order = gpt_dataset._build_document_index(documents, epochs, state, separate)
    samples_index = helpers.build_sample_idx(sizes, order, sequence, epochs, tokens, True, True)
    total = len(samples_index) - 1
    first = ((epochs - 1) * tokens - 1) // sequence if separate and epochs > 1 else total
    shuffle = gpt_dataset._build_shuffle_index(first, total, state)

    equal(recipe_index.document_order(documents, epochs, seed, separate, True), order)
    equal(recipe_index.sample_index(sizes, order, sequence, total), samples_index)
    count = documents.size
    drawn = [(epochs - 1) * count, count] if separate and epochs > 1 else [epochs * count]
    equal(recipe_index.shuffle_index(first, total, seed, True, drawn), shuffle)


def test_a_first_document_without_tokens(helpers: ModuleType) -> None:
    sizes, order = np.array([0, 0, 9], dtype=np.int32), np.array([0, 1, 2], dtype=np.int32)
    equal(recipe_index.sample_index(sizes, order, 4, 2), helpers.build_sample_idx(sizes, order, 4, 1, 9, True, True))


@pytest.mark.parametrize(
    "weights", [[1.0], [0.5, 0.5], [0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3], [0.0, 1.0], [0.04] * 25]
)
def test_blending(helpers: ModuleType, weights: list[float]) -> None:
    shares = np.array(weights)
    datasets, numbers = np.zeros(20_000, dtype=np.int16), np.zeros(20_000, dtype=np.int64)
    helpers.build_blending_indices(datasets, numbers, shares, shares.size, datasets.size, False)
    ours = recipe_index.blending_index(shares, datasets.size)
    equal(ours[0], datasets)
    equal(ours[1], numbers)
