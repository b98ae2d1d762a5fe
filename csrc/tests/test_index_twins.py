"""Each compiled function gives what its NumPy twin gives."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

import recipe_index
from reference import plain

SEEDS = st.integers(0, 2**32 - 1)
SIZES = arrays(np.int32, st.integers(1, 60), elements=st.integers(0, 40))


def equal(ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert np.array_equal(ours, theirs)


@given(
    documents=arrays(np.int32, st.integers(1, 200), elements=st.integers(0, 2**31 - 1)),
    epochs=st.integers(1, 5),
    seed=SEEDS,
    separate=st.booleans(),
    megatron=st.booleans(),
)
def test_document_order(documents: NDArray[np.int32], epochs: int, seed: int, separate: bool, megatron: bool) -> None:
    arguments = documents, epochs, seed, separate, megatron
    equal(recipe_index.document_order(*arguments), plain.document_order(*arguments))


@settings(max_examples=8)
@given(count=st.integers(1 << 15, 200_000), seed=SEEDS, megatron=st.booleans(), separate=st.booleans())
def test_document_order_of_several_buckets_and_blocks(count: int, seed: int, megatron: bool, separate: bool) -> None:
    documents = np.arange(7, count + 7, dtype=np.int32)
    arguments = documents, 2, seed, separate, megatron
    equal(recipe_index.document_order(*arguments), plain.document_order(*arguments))


@given(data=st.data(), total=st.integers(0, 3000), seed=SEEDS, megatron=st.booleans())
def test_shuffle_index(data: st.DataObject, total: int, seed: int, megatron: bool) -> None:
    separate = data.draw(st.integers(0, total))
    drawn = data.draw(st.lists(st.integers(0, 2000), max_size=3))
    arguments = separate, total, seed, megatron, drawn
    equal(recipe_index.shuffle_index(*arguments), plain.shuffle_index(*arguments))


@pytest.mark.parametrize("last", [0, 1, 2, 3, 511, 512, 513, 1023, 1024, 1025, 1 << 16])
def test_shuffle_like_numpy_around_powers_of_two(last: int) -> None:
    for total in (last, last + 1):
        equal(recipe_index.shuffle_index(total, total, 5, True), plain.shuffle_index(total, total, 5, True))


@given(data=st.data(), sizes=SIZES, sequence=st.integers(1, 30))
def test_sample_index(data: st.DataObject, sizes: NDArray[np.int32], sequence: int) -> None:
    order = data.draw(arrays(np.int32, st.integers(1, 200), elements=st.integers(0, sizes.size - 1)))
    most = max(0, int(sizes[order].sum()) - 1) // sequence
    samples = data.draw(st.integers(0, most + 1))
    same_outcome("sample_index", sizes, order, sequence, samples)


def test_sample_index_of_several_blocks() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(0, 100, 5000).astype(np.int32)
    order = np.tile(random.permutation(5000).astype(np.int32), 3)
    for sequence in (1, 7, 64, 5000):
        samples = (int(sizes.sum()) * 3 - 1) // sequence
        arguments = sizes, order, sequence, samples
        equal(recipe_index.sample_index(*arguments), plain.sample_index(*arguments))


@given(
    weights=arrays(np.float64, st.integers(1, 8), elements=st.floats(0, 1, width=16)).filter(lambda w: w.any()),
    samples=st.integers(0, 500),
)
def test_blending_index(weights: NDArray[np.float64], samples: int) -> None:
    weights = weights / weights.sum()
    for ours, theirs in zip(
        recipe_index.blending_index(weights, samples), plain.blending_index(weights, samples), strict=True
    ):
        equal(ours, theirs)


@pytest.mark.parametrize("weights", [[1e308, 1e308], [5e-324, 0.0], [0.0, 1.0], [0.5] * 200])
def test_blending_index_of_odd_weights(weights: list[float]) -> None:
    arguments = np.array(weights), 300
    for ours, theirs in zip(recipe_index.blending_index(*arguments), plain.blending_index(*arguments), strict=True):
        equal(ours, theirs)


@given(
    data=st.data(),
    sizes=SIZES,
    sequence=st.integers(1, 30),
    token=st.sampled_from([np.uint16, np.int32]),
    index=st.sampled_from([np.int32, np.int64]),
    limit=st.sampled_from([1000, 40, 1 << 40]),
)
def test_gather(
    data: st.DataObject, sizes: NDArray[np.int32], sequence: int, token: type, index: type, limit: int
) -> None:
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    low, high = (-1, 50) if data.draw(st.booleans()) and token is np.int32 else (0, 39)
    tokens = data.draw(arrays(token, int(sizes.sum()), elements=st.integers(low, high), fill=st.integers(0, 39)))
    order = plain.document_order(np.arange(sizes.size, dtype=np.int32), 2, 1, False, False)
    samples = max(0, 2 * tokens.size - 1) // sequence
    if tokens.size == 0:
        return
    samples_index = plain.sample_index(sizes, order, sequence, samples).astype(index)
    numbers = st.integers(0, max(0, samples - 1))
    which = data.draw(arrays(np.int64, st.integers(0, 5 if samples else 0), elements=numbers))
    same_outcome("gather", tokens, starts, sizes, order, samples_index, which, sequence, limit)


@given(
    data=st.data(),
    starts=arrays(np.int64, 3, elements=st.integers(-2, 12) | st.just(2**63 - 1)),
    sizes=arrays(np.int32, 3, elements=st.integers(-1, 6) | st.just(2**31 - 1)),
    order=arrays(np.int32, st.integers(0, 4), elements=st.integers(-1, 3)),
    samples_index=arrays(np.int64, (3, 2), elements=st.integers(-1, 5) | st.just(2**63 - 1)),
)
def test_gather_from_arrays_that_do_not_fit(
    data: st.DataObject,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int32],
    order: NDArray[np.int32],
    samples_index: NDArray[np.int64],
) -> None:
    tokens = np.arange(10, dtype=data.draw(st.sampled_from([np.uint16, np.int32])))
    which = np.array([1, 0], dtype=np.int64)
    same_outcome("gather", tokens, starts, sizes, order, samples_index, which, data.draw(st.integers(1, 6)), 10)


def same_outcome(name: str, *arguments: Any) -> None:
    """The compiled function and its twin give the same array, or refuse the arguments in the same words."""
    ours, theirs = (outcome(getattr(module, name), *arguments) for module in (recipe_index, plain))
    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs
    else:
        equal(ours, theirs)


def outcome(function: Callable[..., NDArray[Any]], *arguments: Any) -> NDArray[Any] | str:
    """The result, or the message."""
    try:
        return function(*arguments)
    except ValueError as error:
        return str(error)


def test_stubs_have_the_signatures_of_the_twins() -> None:
    stubs = ast.parse(Path(recipe_index.__file__).with_name("_core.pyi").read_text())
    names = set()
    for stub in (node for node in stubs.body if isinstance(node, ast.FunctionDef)):
        names.add(stub.name)
        twin = ast.parse(inspect.getsource(getattr(plain, stub.name))).body[0]
        assert isinstance(twin, ast.FunctionDef)
        assert ast.dump(stub.args) == ast.dump(twin.args)
        # pybind11 puts the signature it has compiled at the beginning of the docstring.
        compiled = getattr(recipe_index._core, stub.name).__doc__.split(")")[0]
        assert [part.split(":")[0] for part in compiled.split("(")[1].split(", ")] == [a.arg for a in stub.args.args]
    assert names == set(plain.__all__) - {"Idx"} == set(recipe_index.__all__) - {"Idx"}


@pytest.mark.parametrize("stub", ["_core", "_bert", "_text"])
def test_stubs_document_every_argument(stub: str) -> None:
    tree = ast.parse(Path(recipe_index.__file__).with_name(f"{stub}.pyi").read_text())
    documented = 0
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made_by = next((n for n in node.body if isinstance(n, ast.FunctionDef)), None)
            function = node if isinstance(node, ast.FunctionDef) else made_by
            assert function is not None
            text = ast.get_docstring(node) or ""
            names = {argument.arg for argument in function.args.args} - {"self"}
            assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set(), node.name
            documented += len(names)
    assert documented
