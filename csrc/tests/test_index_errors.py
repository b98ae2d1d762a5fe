"""Bad input is refused with a message, the same one from the compiled function and from its twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recipe_index
from reference import plain

I32 = np.arange(6, dtype=np.int32)
I64 = np.arange(6, dtype=np.int64)
GOOD: dict[str, dict[str, Any]] = {
    "document_order": {"documents": I32, "epochs": 2, "seed": 1, "separate_last_epoch": False, "megatron": False},
    "sample_index": {"sizes": I32, "order": I32, "sequence": 4, "samples": 3},
    "shuffle_index": {"separate": 3, "total": 5, "seed": 1, "megatron": True, "drawn": [2]},
    "blending_index": {"weights": np.array([0.25, 0.75]), "samples": 4},
    "gather": {
        "tokens": np.arange(15, dtype=np.uint16),
        "starts": np.array([0, 0, 1, 3, 6, 10], dtype=np.int64),
        "sizes": I32,
        "order": I32,
        "samples_index": np.array([[0, 0], [3, 1], [4, 2], [5, 2]], dtype=np.int32),
        "which": np.array([2, 0], dtype=np.int64),
        "sequence": 4,
        "limit": 15,
    },
    "parse_idx": {"data": np.zeros(40, dtype=np.uint8)},
}


def with_entry(array: Any, at: Any, value: Any) -> Any:
    changed = array.copy()
    changed[at] = value
    return changed


GATHER = GOOD["gather"]
BAD: list[tuple[str, str, Any, str]] = [
    ("document_order", "documents", np.empty(0, dtype=np.int32), "documents: expected at least one entry, got none"),
    ("document_order", "documents", with_entry(I32, 2, -5), "got -5 at index 2"),
    ("document_order", "epochs", 0, "epochs: expected from 1 to"),
    ("document_order", "epochs", 1 << 31, "2147483648 epochs of 6 documents are too many"),
    ("document_order", "seed", -1, "seed: expected from 0 to 4294967295, got -1"),
    ("document_order", "seed", 1 << 32, "got 4294967296"),
    ("sample_index", "sizes", np.empty(0, dtype=np.int32), "sizes: expected at least one entry, got none"),
    ("sample_index", "sizes", with_entry(I32, 4, -1), "sizes: expected no negative number, got -1 at index 4"),
    ("sample_index", "sizes", np.zeros(6, dtype=np.int32), "the order holds 0 tokens"),
    ("sample_index", "order", np.empty(0, dtype=np.int32), "order: expected at least one entry, got none"),
    ("sample_index", "order", with_entry(I32, 5, 6), "order: expected indices from 0 to below 6, got 6 at index 5"),
    ("sample_index", "order", with_entry(I32, 0, -(2**31)), "got -2147483648 at index 0"),
    ("sample_index", "sequence", 0, "sequence: expected from 1 to 2147483646, got 0"),
    ("sample_index", "sequence", (1 << 31) - 1, "sequence: expected from 1 to"),
    ("sample_index", "samples", 4, "samples: expected at most 3, got 4: the order holds 15 tokens"),
    ("sample_index", "samples", 1 << 40, "samples: expected at most 3, got 1099511627776"),
    ("sample_index", "samples", -1, "samples: expected from 0 to"),
    ("shuffle_index", "separate", 6, "separate: expected from 0 to 5, got 6"),
    ("shuffle_index", "total", -1, "total: expected from 0 to"),
    ("shuffle_index", "total", 1 << 41, "total: expected from 0 to"),
    ("shuffle_index", "drawn", [1, -1], "drawn: expected from 0 to"),
    ("blending_index", "weights", np.empty(0), "weights: expected at least one entry, got none"),
    ("blending_index", "weights", np.array([0.5, np.nan]), "the one at index 1 is not"),
    ("blending_index", "weights", np.array([np.inf]), "the one at index 0 is not"),
    ("blending_index", "weights", np.array([0.5, -0.5]), "the one at index 1 is not"),
    ("blending_index", "weights", np.zeros(3), "weights: expected at least one above 0"),
    ("blending_index", "weights", np.ones(1 << 15), "weights: expected at most 32767 entries, got 32768"),
    ("blending_index", "samples", -1, "samples: expected from 0 to"),
    ("gather", "starts", I64[:5].copy(), "starts: expected 6 entries, as many as sizes has, got 5"),
    ("gather", "starts", with_entry(GATHER["starts"], 5, 11), "sequence 5 has 5 tokens from 11 on, the file has 15"),
    ("gather", "starts", with_entry(GATHER["starts"], 5, -1), "sequence 5 has 5 tokens from -1 on"),
    ("gather", "sizes", with_entry(I32, 5, -3), "sequence 5 has -3 tokens"),
    ("gather", "order", with_entry(I32, 5, 9), "order: expected indices from 0 to below 6, got 9 at index 5"),
    ("gather", "order", I32[:5].copy(), "sample 2 gets 2 of its 5 tokens before the order ends"),
    ("gather", "samples_index", np.zeros((4, 3), dtype=np.int32), "expected shape [samples + 1, 2], got [4, 3]"),
    ("gather", "samples_index", np.zeros((0, 2), dtype=np.int32), "got [0, 2]"),
    ("gather", "samples_index", with_entry(GATHER["samples_index"], (2, 1), 5), "offset 5 of sequence 4, which has 4"),
    ("gather", "samples_index", with_entry(GATHER["samples_index"], (2, 0), -1), "starts at position -1, offset 2"),
    ("gather", "which", np.array([3]), "which: expected indices from 0 to below 3, got 3 at index 0"),
    ("gather", "which", np.array([0, -1]), "got -1 at index 1"),
    ("gather", "sequence", 0, "sequence: expected from 1 to"),
    ("gather", "limit", 0, "limit: expected from 1 to"),
    ("gather", "limit", 12, "sample 2: sequence 5 has token id 12 at position 2, expected from 0 to below 12"),
    ("gather", "tokens", np.full(15, -1, dtype=np.int32), "sample 2: sequence 4 has token id -1 at position 2"),
    ("parse_idx", "data", np.empty(0, dtype=np.uint8), "expected a header of 34 bytes, got 0 bytes"),
]
ARRAYS = [
    (name, argument) for name, good in GOOD.items() for argument in good if isinstance(good[argument], np.ndarray)
]
INTEGERS = [(name, key) for name, good in GOOD.items() for key, value in good.items() if type(value) is int]


def refused(name: str, argument: str, value: Any) -> str:
    """The message of the compiled function, after a comparison with that of its twin."""
    messages = []
    for module in (recipe_index, plain):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is what is returned
            getattr(module, name)(**{**GOOD[name], argument: value})
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    return messages[0]


@pytest.mark.parametrize("name", [name for name in GOOD if name != "parse_idx"])
def test_the_good_input_is_good(name: str) -> None:
    getattr(recipe_index, name)(**GOOD[name])
    getattr(plain, name)(**GOOD[name])


@pytest.mark.parametrize(("name", "argument", "value", "message"), BAD)
def test_bad_values(name: str, argument: str, value: Any, message: str) -> None:
    assert message in refused(name, argument, value)


@pytest.mark.parametrize(("name", "argument"), ARRAYS)
def test_bad_arrays(name: str, argument: str) -> None:
    good = GOOD[name][argument]
    assert "expected a NumPy array, got list" in refused(name, argument, good.tolist())
    assert "expected a NumPy array, got NoneType" in refused(name, argument, None)
    assert ", got complex64" in refused(name, argument, good.astype(np.complex64))
    assert "dimension(s), got 4" in refused(name, argument, good.reshape(-1, 1, 1, 1))
    assert "dimension(s), got 0" in refused(name, argument, np.zeros((), dtype=good.dtype))
    strided = np.repeat(good, 2, axis=-1)[..., ::2]
    assert "expected contiguous memory" in refused(name, argument, strided)
    if good.dtype.itemsize > 1:
        swapped = good.astype(good.dtype.newbyteorder())
        assert f", got {swapped.dtype}" in refused(name, argument, swapped)


@pytest.mark.parametrize(("name", "argument"), INTEGERS)
def test_bad_integers(name: str, argument: str) -> None:
    for number in (1 << 63, -(1 << 63) - 1, 1 << 200):
        assert f", got {number}" in refused(name, argument, number)
    for value in (1.0, "1", None, I32):
        for module in (recipe_index, plain):
            with pytest.raises(TypeError):
                getattr(module, name)(**{**GOOD[name], argument: value})


def test_numpy_integers_are_integers() -> None:
    expected = recipe_index.shuffle_index(3, 5, 1, True)
    assert np.array_equal(recipe_index.shuffle_index(np.int64(3), np.uint8(5), np.uint32(1), np.bool_(True)), expected)


def test_unaligned_memory_is_read() -> None:
    raw = np.zeros(8 * 6 + 2, dtype=np.uint8)
    documents = raw[2 : 2 + 24].view(np.int32)
    documents[:] = I32
    assert not documents.flags.aligned
    expected = recipe_index.document_order(I32, 2, 1, False, True)
    assert np.array_equal(recipe_index.document_order(documents, 2, 1, False, True), expected)
