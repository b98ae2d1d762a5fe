"""Which files a run reads, and how they are split."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_megatron_gpt.data.sources import TokenFiles, parse, split_ranges
from recipe_megatron_gpt.settings import GptIndexed


def test_a_weight_stands_before_the_path() -> None:
    assert parse(["data/a"]) == [TokenFiles(Path("data/a"), None)]
    assert parse(["0.3:data/a.v2", "7e-1:/b"]) == [TokenFiles(Path("data/a.v2"), 0.3), TokenFiles(Path("/b"), 0.7)]
    assert parse(["odd:name/a"]) == [TokenFiles(Path("odd:name/a"), None)]
    assert parse(["2:odd:name"]) == [TokenFiles(Path("odd:name"), 2.0)]


def test_an_ending_from_the_shell_is_left_out() -> None:
    assert parse(["data/a.bin", "b.idx"]) == [TokenFiles(Path("data/a"), None), TokenFiles(Path("b"), None)]


@pytest.mark.parametrize("files", [("0:a",), ("-1:a",), ("nan:a",), ("inf:a",), ("1:a", "b")])
def test_weights_that_cannot_be_are_a_mistake_of_the_settings(files: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"files: "):
        GptIndexed(files=files)


def test_splits_cover_everything_once() -> None:
    assert split_ranges(1000, (969, 30, 1)) == {"train": range(969), "valid": range(969, 999), "test": range(999, 1000)}
    assert split_ranges(7, (1,)) == {"train": range(7), "valid": range(0), "test": range(0)}
    assert split_ranges(0, (9, 1)) == {"train": range(0), "valid": range(0), "test": range(0)}


@pytest.mark.peer
@pytest.mark.parametrize("shares", [(969, 30, 1), (1, 1, 1), (0.7, 0.2, 0.1), (99, 1, 0), (1,), (0, 5, 5)])
def test_splits_are_cut_where_megatron_core_cuts(shares: tuple[float, ...]) -> None:
    peer = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_config")
    matrix = peer.convert_split_vector_to_split_matrix(peer.parse_and_normalize_split(",".join(map(str, shares))))
    for count in [*range(60), 999, 1000, 1001, 12345, 10_000_001]:
        theirs = [
            range(0) if ends is None else range(*(int(round(end * float(count))) for end in ends))  # noqa: RUF046
            for ends in matrix
        ]
        for ours, expected in zip(split_ranges(count, shares).values(), theirs, strict=True):
            assert ours == expected
