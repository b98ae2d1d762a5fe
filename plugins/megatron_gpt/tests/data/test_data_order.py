"""The order of samples of ``gpt_indexed``, and the index files behind it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from recipe_core.errors import ConfigError, DataError
from recipe_core.layouts.parallel import Run, Samples
from recipe_megatron_gpt.data import blend
from recipe_megatron_gpt.data.arrays import cached as arrays
from recipe_megatron_gpt.data.samples import build
from recipe_megatron_gpt.settings import GptIndexed

SIZES = [int(size) for size in np.random.default_rng(0).integers(0, 40, 300)]
"""Documents of known, uneven lengths; the ids of each file count upwards, so that every token is one of a kind."""


def tokens_of(samples: Samples, start: int, count: int, split: str = "train") -> torch.Tensor:
    return samples.read(split, start, count)["tokens"]


@pytest.fixture(params=["memory", "files"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small indices are not written to the cache; here they once are."""
    if request.param == "files":
        monkeypatch.setattr(arrays, "SMALL", 0)
    return str(request.param)


@pytest.mark.parametrize("order", ["fast", "megatron"])
def test_labels_follow_tokens_through_the_documents(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], order: Literal["fast", "megatron"], kept: str
) -> None:
    config = GptIndexed(files=(write_tokens(SIZES),), sequence=32, order=order, split=(1,))
    samples = build(config, run_of(steps=10))
    batch = samples.read("train", 5, 60)
    assert [(t.shape, t.dtype, t.is_contiguous()) for t in batch.values()] == [((60, 32), torch.int64, True)] * 2
    assert torch.equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    firsts = set(np.cumsum([0, *SIZES]).tolist())
    jumps = batch["labels"][batch["labels"] != batch["tokens"] + 1]
    assert jumps.numel() > 50
    assert set(jumps.tolist()) <= firsts


def test_every_epoch_reads_every_token_once_in_a_new_order(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], kept: str
) -> None:
    samples = build(GptIndexed(files=(write_tokens(SIZES),), sequence=16, split=(1,)), run_of())
    total = sum(SIZES)
    per_epoch = (total - 1) // 16
    epochs = [tokens_of(samples, per_epoch * n, per_epoch) for n in range(3)]
    for epoch in epochs:
        ids = epoch.flatten().tolist()
        assert len(set(ids)) == len(ids) > total - 17
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])


def test_any_place_reads_as_it_does_from_the_start(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], kept: str
) -> None:
    config = GptIndexed(files=(write_tokens(SIZES),), sequence=64)
    whole = tokens_of(build(config, run_of()), 0, 400)
    samples = build(config, run_of())
    for start, count in [(390, 10), (0, 1), (85, 7), (200, 150), (3, 3)]:
        assert torch.equal(tokens_of(samples, start, count), whole[start : start + count])


def test_the_fast_order_depends_on_the_seed_and_not_on_the_length_of_the_run(
    run_of: Callable[..., Run], write_tokens: Callable[..., str]
) -> None:
    config = GptIndexed(files=(write_tokens(SIZES),), sequence=64)
    read = [
        tokens_of(build(config, run_of(**train)), 0, 200)
        for train in ({"steps": 1}, {"steps": 10_000, "global_batch": 512}, {"steps": 1, "seed": 4321})
    ]
    assert torch.equal(read[0], read[1])
    assert not torch.equal(read[0], read[2])


def test_training_and_validation_share_no_token(run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    samples = build(GptIndexed(files=(write_tokens(SIZES),), sequence=8, split=(8, 2)), run_of(eval_every=1))
    train = set(tokens_of(samples, 0, 2000).flatten().tolist())
    valid = set(tokens_of(samples, 0, 2000, "valid").flatten().tolist())
    border = sum(SIZES[:240])
    assert max(train) < border <= min(valid)
    assert len(valid) > (sum(SIZES) - border) * 0.95


def test_a_split_shorter_than_a_sample_is_repeated(
    run_of: Callable[..., Run], write_tokens: Callable[..., str]
) -> None:
    config = GptIndexed(files=(write_tokens([3, 4]),), sequence=32, split=(1,))
    for order in ("fast", "megatron"):
        ids = tokens_of(build(GptIndexed(files=config.files, sequence=32, split=(1,), order=order), run_of()), 0, 50)
        assert set(ids.flatten().tolist()) == set(range(7))


@pytest.mark.parametrize("order", ["fast", "megatron"])
def test_an_empty_split_is_named_before_the_run_starts(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], order: Literal["fast", "megatron"]
) -> None:
    config = GptIndexed(files=(write_tokens([9, 9]),), sequence=4, split=(99, 1), order=order)
    build(config, run_of())  # without validation
    with pytest.raises(DataError, match=r"tokens\.bin: the split 'valid' gets 0 of its 2 sequences and no token"):
        build(config, run_of(eval_every=5))


def test_the_megatron_order_starts_again_after_its_end(
    run_of: Callable[..., Run], write_tokens: Callable[..., str]
) -> None:
    config = GptIndexed(files=(write_tokens([10] * 10),), sequence=10, split=(1,), order="megatron")
    samples = build(config, run_of(steps=1, global_batch=8, micro_batch=1))
    assert torch.equal(tokens_of(samples, 0, 9), tokens_of(samples, 9, 9))
    with pytest.raises(ConfigError, match=r"train.seed: .*got -1"):
        build(config, run_of(seed=-1))


@pytest.mark.parametrize("order", ["fast", "megatron"])
def test_a_token_id_beyond_the_vocabulary_is_named_with_its_document(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], order: Literal["fast", "megatron"]
) -> None:
    config = GptIndexed(files=(write_tokens([50, 50, 20]),), sequence=10, split=(1,), order=order)
    samples = build(config, run_of(vocabulary=120))
    samples.read("train", 0, 30)
    samples = build(config, run_of(vocabulary=110))
    message = r"tokens\.bin: document 2 \(sequence 2\) has the token id 110 at position 10, expected .* below 110"
    with pytest.raises(DataError, match=message):
        samples.read("train", 0, 30)


def test_a_negative_token_id_is_refused_without_a_vocabulary(
    run_of: Callable[..., Run], write_tokens: Callable[..., str]
) -> None:
    config = GptIndexed(files=(write_tokens([40, 40], dtype="int32", first=-60),), sequence=10, split=(1,))
    with pytest.raises(DataError, match=r"has the token id -"):
        build(config, run_of()).read("train", 0, 8)


def share(ids: torch.Tensor, first: int) -> float:
    return float(((ids >= first) & (ids < first + 10_000)).float().mean())


@pytest.mark.parametrize("order", ["fast", "megatron"])
def test_a_blend_takes_its_shares_evenly_from_start_to_end(
    run_of: Callable[..., Run],
    write_tokens: Callable[..., str],
    order: Literal["fast", "megatron"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blend, "PERIOD", 300)
    files = (f"3:{write_tokens(SIZES, 'a')}", f"1:{write_tokens(SIZES, 'b', first=10_000)}")
    samples = build(GptIndexed(files=files, sequence=32, order=order), run_of(steps=10, global_batch=50, micro_batch=5))
    for start in (0, 100, 260, 280, 1000):
        assert share(tokens_of(samples, start, 100), 0) == pytest.approx(0.75, abs=0.02)
    # The blend draws each file's samples in the file's own order, also after its choices repeat.
    alone = build(GptIndexed(files=(files[1][2:],), sequence=32, order="fast"), run_of())
    drawn = tokens_of(samples, 0, 1000)
    drawn = drawn[drawn[:, 0] >= 10_000]
    if order == "fast":
        assert torch.equal(drawn, tokens_of(alone, 0, len(drawn)))
    else:
        assert len(drawn) == 250


def test_without_weights_the_sizes_decide(run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    files = (write_tokens([100] * 90, "a"), write_tokens([100] * 10, "b", first=10_000))
    for order in ("fast", "megatron"):
        samples = build(GptIndexed(files=files, sequence=50, split=(1,), order=order), run_of(steps=100))
        assert share(tokens_of(samples, 0, 190), 0) == pytest.approx(0.9, abs=0.01)


def test_a_file_without_validation_leaves_it_to_the_others(
    run_of: Callable[..., Run], write_tokens: Callable[..., str]
) -> None:
    files = (write_tokens(SIZES, "large"), write_tokens([5000], "small", first=20_000))
    samples = build(GptIndexed(files=files, sequence=16), run_of(eval_every=1))
    assert tokens_of(samples, 0, 100).max() >= 20_000
    assert tokens_of(samples, 0, 100, "valid").max() < 20_000


def test_a_file_too_short_for_megatron_is_refused(run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    files = (write_tokens(SIZES, "a"), write_tokens([5], "short"))
    with pytest.raises(DataError, match=r"short: the split 'train' of this file is shorter than one sample"):
        build(GptIndexed(files=files, sequence=16, order="megatron", split=(1,)), run_of())


def index_files(run: Run) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (run.cache / "gpt_indexed").glob("[!.]*")}


def test_index_files_are_built_once_and_again_when_the_data_or_the_settings_change(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "SMALL", 0)
    run = run_of()
    config = GptIndexed(files=(write_tokens(SIZES),), sequence=16)
    first = tokens_of(build(config, run), 0, 20)
    built = index_files(run)
    assert sorted(name.split("-")[2] for name in built) == ["cuts", "order", "sequences", "shuffle"]
    assert torch.equal(tokens_of(build(config, run), 0, 20), first)
    assert index_files(run) == built
    write_tokens([*SIZES, 5])
    changed = build(config, run)
    assert len(index_files(run)) == 7  # the sequences of the old file are removed
    write_tokens([*SIZES, 5], "elsewhere")
    moved = build(GptIndexed(files=(str(Path(config.files[0]).with_name("elsewhere")),), sequence=16), run)
    assert torch.equal(tokens_of(moved, 0, 20), tokens_of(changed, 0, 20))
    before = len(index_files(run))
    for other in (GptIndexed(files=config.files, sequence=17), GptIndexed(files=config.files, sequence=16, split=(1,))):
        build(other, run)
        assert len(index_files(run)) > before
        before = len(index_files(run))


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"no array at all", None])
def test_a_damaged_index_file_is_built_again(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    monkeypatch.setattr(arrays, "SMALL", 0)
    run = run_of()
    config = GptIndexed(files=(write_tokens(SIZES),), sequence=16)
    first = tokens_of(build(config, run), 0, 50)
    for path in (run.cache / "gpt_indexed").glob("*.npy"):
        path.write_bytes(path.read_bytes()[:-4] if damage is None else damage)
    assert torch.equal(tokens_of(build(config, run), 0, 50), first)


CHILD = """
import sys
from hashlib import sha256
from pathlib import Path
import numpy as np
from recipe_megatron_gpt.data.arrays import cached as arrays
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.order import BlendPart
from recipe_megatron_gpt.data.packed import fast

arrays.SMALL = 0
file = IndexedFile.open(Path(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
order = fast(BlendPart(file, "train", range(file.sizes.size), 16, 1234, 1 << 16, Path(sys.argv[1])))
print(sha256(order.gather(np.arange(900))).hexdigest())
"""


@pytest.mark.parametrize("damaged", [False, True])
def test_four_processes_at_once_build_one_index(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], tmp_path: Path, damaged: bool
) -> None:
    prefix = write_tokens(SIZES * 5)
    folder = tmp_path / "shared"

    def run_children(count: int) -> set[str]:
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, str(folder), prefix],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        try:
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
            for child in children:  # all have imported what they need: now they start together
                assert child.stdin is not None
                child.stdin.write("\n")
                child.stdin.flush()
            return {child.communicate(timeout=60)[0] for child in children}
        finally:
            for child in children:
                child.kill()
                child.wait()

    if damaged:
        run_children(1)
        for path in folder.glob("*.npy"):
            path.write_bytes(path.read_bytes()[:100])
    (digest,) = run_children(4)
    assert len(digest) == 65
    assert list(folder.glob(".*.part")) == []
    assert run_children(1) == {digest}
