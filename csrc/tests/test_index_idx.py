"""The reader of .idx files: sound files, and thousands of damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import recipe_index
from reference import plain

WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}


def idx_bytes(code: int = 8, sizes: tuple[int, ...] = (3, 0, 5, 2), bounds: tuple[int, ...] = (0, 2, 2, 4)) -> bytes:
    lengths = np.array(sizes, dtype="<i4")
    pointers = (np.cumsum(lengths, dtype="<i8") - lengths) * WIDTHS[code]
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sizes), len(bounds))
    return header + lengths.tobytes() + pointers.tobytes() + np.array(bounds, dtype="<i8").tobytes()


def as_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def outcome(function: object, data: NDArray[np.uint8]) -> object:
    """The parts of the file as plain numbers, or the message."""
    assert callable(function)
    try:
        parsed = function(data)
    except ValueError as error:
        return str(error)
    return parsed.dtype_code, *(part.tolist() for part in parsed[1:])


@pytest.mark.parametrize("code", WIDTHS)
def test_a_sound_file(code: int) -> None:
    data = as_array(idx_bytes(code))
    parsed = recipe_index.parse_idx(data)
    assert parsed.dtype_code == code
    assert [part.dtype for part in parsed[1:]] == [np.int32, np.int64, np.int64]
    assert parsed.sizes.tolist() == [3, 0, 5, 2]
    assert parsed.pointers.tolist() == [0, 3 * WIDTHS[code], 3 * WIDTHS[code], 8 * WIDTHS[code]]
    assert parsed.documents.tolist() == [0, 2, 2, 4]
    assert all(np.shares_memory(part, data) for part in parsed[1:])
    assert outcome(plain.parse_idx, data) == outcome(recipe_index.parse_idx, data)


def test_no_sequences_and_mode_bytes() -> None:
    for data in (idx_bytes(sizes=(), bounds=(0,)), idx_bytes() + bytes(4)):
        result = outcome(recipe_index.parse_idx, as_array(data))
        assert isinstance(result, tuple)
        assert result == outcome(plain.parse_idx, as_array(data))


def test_a_memory_map_outlives_its_name(tmp_path: Path) -> None:
    path = tmp_path / "corpus.idx"
    path.write_bytes(idx_bytes())
    parsed = recipe_index.parse_idx(np.memmap(path, dtype=np.uint8, mode="r"))
    assert type(parsed.sizes) is np.ndarray
    assert not parsed.sizes.flags.writeable
    assert parsed.sizes.sum() == 10


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (idx_bytes()[:33], "expected a header of 34 bytes, got 33 bytes"),
        (b"PK\3\4" + idx_bytes(), "expected an .idx file, which begins with MMIDIDX"),
        (idx_bytes()[:9] + b"\2" + idx_bytes()[10:], "expected version 1, got 2"),
        (idx_bytes()[:17] + b"\6" + idx_bytes()[18:], "expected a token type of 1 to 5 or 8, got 6"),
        (idx_bytes()[:-1], "4 sequences and 4 document boundaries do not make a file of 113 bytes"),
        (idx_bytes(bounds=()), "expected at least one document boundary, got none"),
        (idx_bytes()[:18] + b"\xff" * 8 + idx_bytes()[26:], "18446744073709551615 sequences and 4"),
        (idx_bytes()[:26] + b"\xff" * 8 + idx_bytes()[34:], "and 18446744073709551615 document boundaries"),
        (idx_bytes(sizes=(3, -1)), "sequence 1: expected no negative size, got -1"),
        (idx_bytes().replace(struct.pack("<q", 6), struct.pack("<q", 7), 1), "expected to start at byte 6, got 7"),
        (idx_bytes(bounds=(1, 4)), "expected the first to start at sequence 0, got 1"),
        (idx_bytes(bounds=(0, 3, 2, 4)), "document 1 ends at sequence 2, before its start 3"),
        (idx_bytes(bounds=(0, 3)), "expected the last to end at sequence 4, got 3"),
    ],
)
def test_a_damaged_file(data: bytes, message: str) -> None:
    assert message in str(outcome(recipe_index.parse_idx, as_array(data)))
    assert outcome(recipe_index.parse_idx, as_array(data)) == outcome(plain.parse_idx, as_array(data))


def test_thousands_of_damaged_files() -> None:
    """Bytes changed, cut off, doubled: the reader says what its twin says, and reads nothing outside of the file."""
    random = np.random.default_rng(1)
    whole = [as_array(idx_bytes(code, sizes)) for code in WIDTHS for sizes in ((3, 0, 5, 2), tuple(range(4)))]
    edges = np.array([0, 1, 2, 6, 7, 8, 9, 127, 128, 254, 255], dtype=np.uint8)
    refused = 0
    for number in range(4000):
        data = whole[number % len(whole)].copy()
        for _ in range(random.integers(0, 4)):
            data[random.integers(data.size)] = random.choice(edges)
        if random.random() < 0.3:
            data = data[: random.integers(data.size + 1)].copy()
        if random.random() < 0.1:
            data = np.concatenate([data, data[: random.integers(data.size + 1)]])
        result = outcome(recipe_index.parse_idx, data)
        assert result == outcome(plain.parse_idx, data)
        refused += isinstance(result, str)
    assert 1000 < refused < 4000  # both kinds were among them
