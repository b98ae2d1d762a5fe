"""How ``gpt_indexed`` opens its files: maps, handles, advice to the kernel, and what processes share."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import recipe_index
from recipe_core import DataError
from recipe_core.layouts.parallel import Run
from recipe_megatron_gpt.data.arrays import cached as arrays
from recipe_megatron_gpt.data.arrays.mapped import mapped
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.samples import GptSamples, build
from recipe_megatron_gpt.settings import GptIndexed

SIZES = [int(size) for size in np.random.default_rng(0).integers(1, 40, 300)]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into Linux's /proc/self")


def flags(path: Path) -> set[str]:
    """The advice given to the kernel on the maps of a file: ``rr`` random, ``sr`` sequential."""
    found: set[str] = set()
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            inside = line.endswith(f" {path}")
        elif first == "VmFlags:" and inside:
            found |= set(line.split()[1:])
    return found


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@on_linux
def test_the_kernel_is_told_how_files_are_read(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "SMALL", 0)
    prefix, run = write_tokens(SIZES), run_of()
    samples = build(GptIndexed(files=(prefix,), sequence=16), run)
    samples.read("train", 0, 4)
    advised = {path.name.split("-")[-2]: flags(path) for path in (run.cache / "gpt_indexed").glob("*.npy")}
    advised["tokens"] = flags(Path(f"{prefix}.bin"))
    assert {name for name, seen in advised.items() if "rr" in seen} == {"tokens", "order", "cuts", "sequences"}
    assert "rd" in advised["shuffle"]
    assert not {"rr", "sr"} & advised["shuffle"]  # a run reads it from front to back, and other things between
    in_order = IndexedFile.open(Path(prefix), access="sequential")
    assert "sr" in flags(Path(f"{prefix}.bin"))
    assert in_order.tokens.size == sum(SIZES)


@on_linux
def test_open_files_hold_no_handle(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "SMALL", 0)
    files = tuple(f"1:{write_tokens(SIZES, f'part{number}')}" for number in range(12))
    build(GptIndexed(files=files, sequence=16, split=(1,)), run_of())  # what is imported late is, now
    before = handles()
    samples = build(GptIndexed(files=files, sequence=16, split=(1,)), run_of())
    assert samples.read("train", 0, 64)["tokens"].shape == (64, 16)
    assert handles() == before


def test_a_file_that_is_cut_while_it_is_read_is_named(
    run_of: Callable[..., Run], write_tokens: Callable[..., str]
) -> None:
    """Behind the last page of a cut file is a SIGBUS, and in it are zeros, which would be a token id."""
    path = Path(f"{write_tokens([100] * 100)}.bin")
    samples = build(GptIndexed(files=(str(path.with_suffix("")),), sequence=16, split=(1,)), run_of())
    whole = samples.read("train", 0, 64)
    content = path.read_bytes()
    for left in (len(content) - 2, 4096, 0):
        os.truncate(path, left)
        with pytest.raises(DataError, match=rf"tokens\.bin: was cut while the run read it: it has {left:,} bytes"):
            samples.read("train", 0, 64)
    path.write_bytes(content)
    assert torch.equal(samples.read("train", 0, 64)["tokens"], whole["tokens"])
    path.unlink()  # which leaves the map its content
    assert torch.equal(samples.read("train", 0, 64)["tokens"], whole["tokens"])


@on_linux
def test_a_map_ends_with_its_last_array(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(b"xx" + np.arange(1000, dtype=np.int64).tobytes() + b"yyy")
    part = mapped(path, np.int64, offset=2)[10:20]
    path.unlink()
    assert part.tolist() == list(range(10, 20))
    assert not part.flags.writeable
    assert str(path) in Path("/proc/self/maps").read_text()
    del part
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_no_map_of_a_file_that_is_too_short(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(b"12345678")
    assert mapped(path, np.int64, offset=8).size == 0
    with pytest.raises(ValueError, match="8 bytes, expected 9 or more"):
        mapped(path, np.int64, offset=9)
    with pytest.raises(FileNotFoundError):
        mapped(tmp_path / "none", np.int64)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the .idx files that were checked as a whole."""
    seen: list[int] = []
    parse = recipe_index.parse_idx

    def count(data: np.ndarray) -> recipe_index.Idx:
        seen.append(data.size)
        return parse(data)

    monkeypatch.setattr(recipe_index, "parse_idx", count)
    monkeypatch.setattr(arrays, "SMALL", 0)
    return seen


def test_a_file_is_checked_once_per_machine_and_again_when_it_changes(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], parsed: list[int]
) -> None:
    run = run_of()
    prefix = write_tokens(SIZES)
    config = GptIndexed(files=(prefix,), sequence=16)
    first = build(config, run).read("train", 0, 30)["tokens"]
    for _ in range(3):
        assert torch.equal(build(config, run).read("train", 0, 30)["tokens"], first)
    assert len(parsed) == 1
    idx = Path(f"{prefix}.idx")
    content = idx.read_bytes()
    idx.write_bytes(content)  # the same bytes, but who knows
    assert torch.equal(build(config, run).read("train", 0, 30)["tokens"], first)
    assert len(parsed) == 2
    assert len(list((run.cache / "gpt_indexed").glob("*-sequences-*.npy"))) == 1
    idx.write_bytes(content[:34] + b"\xff\xff\xff\xff" + content[38:])
    with pytest.raises(DataError, match=r"tokens\.idx: is damaged: .*-1"):
        build(config, run)


def test_tokens_that_went_after_the_check_are_missed(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], parsed: list[int]
) -> None:
    prefix = write_tokens(SIZES)
    build(GptIndexed(files=(prefix,), sequence=16), run_of())
    os.truncate(f"{prefix}.bin", 2 * sum(SIZES) - 2)
    with pytest.raises(DataError, match=r"tokens\.bin: cut off after .* says that it holds"):
        build(GptIndexed(files=(prefix,), sequence=16), run_of())
    assert len(parsed) == 1


def test_opening_again_takes_no_memory_per_sequence(tmp_path: Path, write_tokens: Callable[..., str]) -> None:
    prefix = Path(write_tokens([1] * 300_000, dtype="int32"))
    IndexedFile.open(prefix, tmp_path / "cache")
    tracemalloc.start()
    try:
        file = IndexedFile.open(prefix, tmp_path / "cache")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # bytes; sizes and starts alone have 3.6 MB
    assert file.count(range(5, 200_005)) == 200_000
    assert file.sizes.ctypes.data % 4 == file.starts.ctypes.data % 8 == 0  # as compiled code wants them


def windows(run: Run, split: str) -> int:
    """How many windows of a split have their order in the cache."""
    return len(list((run.cache / "gpt_indexed").glob(f"tokens-{split}-order-*.npy")))


def test_indices_of_epochs_that_are_over_are_removed(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = in_order(build(GptIndexed(files=(write_tokens(SIZES),), sequence=16, split=(1, 1)), run_of()), 6)
    monkeypatch.setattr(arrays, "SMALL", 0)
    run = run_of()
    samples = build(GptIndexed(files=(write_tokens(SIZES),), sequence=16, split=(1, 1)), run)
    (run.cache / "gpt_indexed" / "tokens-train-order-mine.npy").write_bytes(b"of somebody else")
    behind = build(GptIndexed(files=(write_tokens(SIZES),), sequence=16, split=(1, 1)), run)
    kept = behind.read("train", 0, 10)["tokens"]
    assert torch.equal(in_order(samples, 6), wanted)
    assert windows(run, "train") == 1 + 3  # the first, the two in use, and the file that is not ours
    assert torch.equal(in_order(behind, 6), wanted)  # a process behind builds what it misses
    assert torch.equal(kept, behind.read("train", 0, 10)["tokens"])
    for start in range(0, 5 * EPOCH, EPOCH):
        samples.read("valid", start, 1)
    assert windows(run, "valid") >= 4


EPOCH = sum(SIZES[:150]) // 16


def in_order(samples: GptSamples, epochs: int) -> torch.Tensor:
    """The tokens of several epochs, read in pieces."""
    return torch.cat([samples.read("train", start, 50)["tokens"] for start in range(0, epochs * EPOCH, 50)])
