"""Needs of indices as ``recipe check`` states them, against the arrays that a run writes."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from recipe_core import Train
from recipe_core.cli.main import main
from recipe_core.layouts.parallel import Run
from recipe_core.train.start.check import indices as checks
from recipe_core.train.start.check.machine import Memory
from recipe_megatron_gpt.data import blend
from recipe_megatron_gpt.data.arrays import cached as arrays
from recipe_megatron_gpt.data.arrays import indices
from recipe_megatron_gpt.data.arrays.indices import index_facts
from recipe_megatron_gpt.data.samples import build
from recipe_megatron_gpt.settings import GptIndexed

Order = Literal["fast", "megatron"]


@pytest.fixture(autouse=True)
def everything_in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small indices go to the cache, too."""
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(arrays, "SMALL", 0)
    monkeypatch.setattr(indices, "SMALL", 0)


@pytest.mark.parametrize(
    ("order", "weights", "steps"),
    [("fast", (), 1), ("fast", (0.2, 0.8), 1), ("megatron", (), 1), ("megatron", (), 40), ("megatron", (0.2, 0.8), 40)],
)
@pytest.mark.parametrize("files", [1, 2])
def test_the_bytes_are_those_of_the_arrays_that_a_run_builds(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], order: Order, weights: tuple[float, ...], steps: int,
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for module in (indices, blend):
        monkeypatch.setattr(module, "PERIOD", 300)
    names = [write_tokens([7, 12, 5] * 40, "a"), write_tokens([31] * 50, "b")][:files]
    if weights:
        names = [f"{weight}:{name}" for weight, name in zip(weights, names, strict=False)]
    config = GptIndexed(files=tuple(names), sequence=16, order=order, split=(9, 1))
    run = run_of(steps=steps, global_batch=8, micro_batch=8, eval_every=1, eval_samples=8)
    beforehand = index_facts(config, run.train)
    samples = build(config, run)
    samples.read("train", 0, 8)
    samples.read("valid", 0, 8)
    files_of = (tmp_path / "cache" / "gpt_indexed").glob("*.npy")
    built, used = [], Counter[str]()
    for path in files_of:
        if "sequences" not in path.name:
            built.append(np.load(path))
            used[path.stem.rpartition("-")[0]] += 1
    assert beforehand.disk == sum(array.nbytes for array in built)
    choosing = max([2 * array.nbytes for array in built if array.dtype.names], default=0)
    assert beforehand.memory == max(choosing, *(array.nbytes for array in built))
    assert beforehand.maps == 2 * files + sum(min(count, 2) for count in used.values())  # windows in use at once
    after = index_facts(config, run.train)
    assert (after.disk, after.maps) == (0, beforehand.maps)


def test_many_files_are_read_with_hardly_a_free_handle(
    run_of: Callable[..., Run], write_tokens: Callable[..., str]
) -> None:
    names = tuple(write_tokens([90], f"f{number}") for number in range(40))
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 10, hard))
    try:
        for order in ("fast", "megatron"):
            config = GptIndexed(files=names, sequence=16, order=order, split=(1,))
            samples = build(config, run_of(steps=2, global_batch=40, micro_batch=1))
            assert samples.read("train", 0, 40)["tokens"].shape == (40, 16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_three_billion_samples_in_megatrons_order_are_refused_by_one_message(
    write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one document of 100,001 tokens, an epoch has 1,562 samples of 64."""
    monkeypatch.setattr(checks, "memory", lambda device: Memory(25_000_000_000, "this machine", shared=True))
    prefix = write_tokens([100_001], dtype="int32")
    words = [f"data.files={prefix}", "train.steps=375000000", "data.order=megatron", "data.split=1"]
    assert main(["check", "megatron_gpt:tiny", *words, "train.eval_every=0"]) == 2
    said = capsys.readouterr()
    assert "up to 24 GB of the 25 GB that this machine has, once per machine; 36 GB in the cache" in said.out
    assert said.err.splitlines() == [
        "recipe check: data: building the indices of this run takes 24 GB of main memory, and this machine has 25 GB; "
        "set data.order=fast, whose indices are those of one epoch, or build them on a larger machine"
    ]


def test_orders_beyond_what_the_builder_takes_are_named(write_tokens: Callable[..., str]) -> None:
    train = Train(steps=400_000_000, global_batch=8, micro_batch=8)
    (problem,) = index_facts(
        GptIndexed(files=(write_tokens([1] * 99, "short"),), sequence=4, order="megatron", split=(1,)), train
    ).problems
    assert "short.bin: data.order=megatron orders all 129,292,930 epochs of its 99 sequences at once" in problem
    many = index_facts(GptIndexed(files=tuple(f"x{number}" for number in range(40_000))), train)
    assert many.problems == ("data.files: at most 32,767 files can be blended, got 40,000",)


def test_maps_and_disk_are_counted(
    write_tokens: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(checks, "map_limit", lambda: 2005)
    files = ",".join(write_tokens([400], name) for name in "ab")
    words = ["megatron_gpt:tiny", f"data.files={files}", "data.split=1", "train.eval_every=0"]
    assert main(["check", *words]) == 2
    assert "2 files and their indices need 17 memory maps in each process" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))  # where no other test has left these indices
    monkeypatch.setattr(checks, "free_space", lambda folder: 1000)
    assert main(["run", *words, "--out", str(tmp_path / "never")]) == 74
    assert "the indices of the data take 10.5 MB, and 1 kB are free; free some space" in capsys.readouterr().err


def test_too_little_memory_while_building_is_a_message(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 22.4 GiB")

    monkeypatch.setattr("recipe_index.sample_index", full)
    with pytest.raises(arrays.DataError, match=r"tokens-train-cuts-.*too small to build this index of .* 22.4 GiB"):
        build(GptIndexed(files=(write_tokens([400] * 10),), sequence=16), run_of())
