"""Tensors of files are compared bit by bit in blocks of rows, with at most one of them whole in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipe_core.checkpoint import lazy as module
from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.io.archive import ArchiveRecord
from recipe_core.checkpoint.io.safetensors import read_tensors, write_tensors
from recipe_core.checkpoint.io.torch_save import read_tree
from recipe_core.checkpoint.lazy import Lazy, lazy, same_values
from recipe_core.errors import CheckpointError

ROWS = 700
SHAPE = (ROWS, 1000)
"""2.8 MB in fp32: several blocks, and more than a huge page."""


def by_rows(tensor: Tensor) -> Lazy:
    return Lazy(
        tensor.shape, tensor.dtype, tensor.clone, rows=lambda start, count: tensor[start : start + count].clone()
    )


def whole(tensor: Tensor) -> Lazy:
    return Lazy(tensor.shape, tensor.dtype, tensor.clone)


def transposed(tensor: Tensor) -> Lazy:
    return Lazy(tensor.shape, tensor.dtype, lambda: tensor.t().contiguous().t())


Kind = Callable[[Tensor], Lazy]
KINDS: list[Kind] = [by_rows, whole, transposed]


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("at", [(0, 0), (350, 500), (ROWS - 1, 999)])
def test_one_bit_anywhere_is_found(first: Kind, second: Kind, at: tuple[int, int]) -> None:
    one = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    assert same_values(first(one), second(one))
    other = one.clone()
    other.view(torch.int32)[at] ^= 1
    assert not same_values(first(one), second(other))


@pytest.mark.parametrize("shape", [(), (3,), (7, 3), (0, 4), (4, 0), (1, 300_000)])
def test_shapes_and_types(shape: tuple[int, ...]) -> None:
    one = torch.ones(shape)
    for kind in (by_rows, whole):
        assert same_values(kind(one), lazy(one.clone()))
        assert not same_values(kind(one), kind(one.half()))
        assert not same_values(kind(one), kind(torch.ones(*shape, 1)))
        assert same_values(kind(one), kind(-one)) is (one.numel() == 0)


@pytest.mark.parametrize("pair", [(0.0, -0.0), (float("nan"), float("nan"))])
def test_bits_and_not_numbers_are_compared(pair: tuple[float, float]) -> None:
    one, two = (torch.full(SHAPE, value) for value in pair)
    assert same_values(by_rows(one), whole(two)) is (str(pair[0]) == str(pair[1]))


def test_of_two_tensors_that_can_be_read_in_rows_none_is_whole_in_memory() -> None:
    most = 0

    def rows(start: int, count: int) -> Tensor:
        nonlocal most
        most = max(most, count)
        return torch.ones(count, 1000)

    def read() -> Tensor:
        raise AssertionError("the whole was read")

    assert same_values(*(Lazy(torch.Size(SHAPE), torch.float32, read, rows=rows) for _ in range(2)))
    assert most * 4000 <= module._BLOCK


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_large_tensors_of_files(name: str, tmp_path: Path) -> None:
    tensor, path = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)), tmp_path / name
    if name == "x.pt":
        torch.save({"w": tensor}, path)
    else:
        write_tensors(path, {"w": lazy(tensor)})
    open_file = partial(read_tree if name == "x.pt" else read_tensors, path)
    read = open_file()["w"]
    assert torch.equal(read.read(), tensor)
    assert same_values(read, lazy(tensor))
    read.read().add_(1)  # a copy of the file's bytes
    assert same_values(open_file()["w"], lazy(tensor))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 2_000_000)
    with pytest.raises(CheckpointError, match="bytes too early"):
        read.read()


def test_a_dcp_tensor_that_cannot_be_read_in_rows_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2)).t()  # stored with its strides
    Dcp().save(tmp_path, {"model": {"w": tensor}})
    reads = []
    read = ArchiveRecord.read
    monkeypatch.setattr(ArchiveRecord, "read", lambda *args: reads.append(args) or read(*args))
    stored = Dcp().open(tmp_path)["model"]["w"]
    assert same_values(stored, by_rows(tensor))
    assert len([args for args in reads if args[2] >= tensor.nbytes]) == 1
    stored.read().add_(1)  # a copy, whole or in part
    stored.part(0, 5).add_(1)
    assert same_values(stored, by_rows(tensor))
    other = tmp_path / "other"
    other.mkdir()
    Dcp().save(other, {"model": {"w": -tensor}})
    other.joinpath("__0_0.distcp").replace(tmp_path / "__0_0.distcp")
    assert same_values(Dcp().open(tmp_path)["model"]["w"], by_rows(-tensor))
