"""``data.order=megatron`` gives the samples of megatron-core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recipe_core.layouts.parallel import Run
from recipe_megatron_gpt.data.arrays import cached as arrays
from recipe_megatron_gpt.data.indexed import IndexedWriter
from recipe_megatron_gpt.data.samples import build
from recipe_megatron_gpt.settings import GptIndexed

pytestmark = pytest.mark.peer
SEQUENCE, SEED = 32, 77


def write(prefix: Path, dtype: str, documents: int, seed: int) -> str:
    random = np.random.default_rng(seed)
    with IndexedWriter(prefix, dtype) as writer:
        for size in random.integers(0, 120, documents):
            writer.add_document([random.integers(0, 65000 if dtype == "uint16" else 250_000, size)])
    return str(prefix)


def theirs(paths: list[str], weights: list[float] | None, split: str, samples: tuple[int, int]) -> list[Any]:
    """megatron-core's training and validation datasets."""
    builder = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder")
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    config = gpt.GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQUENCE,
        blend=(paths, weights),
        split=split,
        path_to_cache=None,  # beside the files; elsewhere a blend would want a process group
        # Ids below 0 never occur, so that no token is taken for padding.
        tokenizer=SimpleNamespace(vocab_size=300_000, eod=-2, pad=-1, unique_identifiers={"class": "none"}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [*samples, None if weights is None else 0]
    built: list[Any] = builder.BlendedMegatronDatasetBuilder(gpt.GPTDataset, sizes, lambda: True, config).build()[:2]
    return built


def assert_equal(ours: Any, peers: list[Any], counts: tuple[int, int]) -> None:
    for split, peer, count in zip(("train", "valid"), peers, counts, strict=True):
        assert len(peer) >= count
        batch = ours.read(split, 0, count)
        for name in ("tokens", "labels"):
            assert torch.equal(batch[name], torch.stack([peer[i][name] for i in range(count)])), (split, name)


@pytest.fixture(params=["memory", "files"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "files":
        monkeypatch.setattr(arrays, "SMALL", 0)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize(
    ("documents", "last_epoch"),
    [(2000, "one epoch"), (300, "shuffled with the others"), (286, "separate")],
)
def test_a_thousand_samples_equal_gpt_dataset(
    tmp_path: Path, run_of: Callable[..., Run], dtype: str, documents: int, last_epoch: str
) -> None:
    path = write(tmp_path / "tokens", dtype, documents, seed=3)
    run = run_of(steps=100, global_batch=10, micro_batch=1, seed=SEED, eval_samples=90, eval_every=1)
    ours = build(GptIndexed(files=(path,), sequence=SEQUENCE, order="megatron", split=(90, 9, 1)), run)
    peers = theirs([path], None, "90,9,1", (1000, 90))
    train = peers[0]
    per_epoch = (train._get_num_tokens_per_epoch() - 1) // SEQUENCE
    epochs = train._get_num_epochs(train._get_num_tokens_per_epoch())
    needed = 1000 - (epochs - 1) * per_epoch
    found = "one epoch" if epochs == 1 else "separate" if needed < 0.8 * per_epoch - 2 else "shuffled with the others"
    assert found == last_epoch
    assert_equal(ours, peers, (len(train), 90))


@pytest.mark.parametrize("weights", [[0.7, 0.2, 0.1], [30.0, 1.0, 3.0], None])
def test_a_blend_equals_blended_dataset(
    tmp_path: Path, run_of: Callable[..., Run], weights: list[float] | None
) -> None:
    counts = [900, 400, 300]
    paths = [write(tmp_path / f"f{n}", "int32", count, seed=n) for n, count in enumerate(counts)]
    files = tuple(paths) if weights is None else tuple(f"{w}:{p}" for w, p in zip(weights, paths, strict=True))
    run = run_of(steps=100, global_batch=10, micro_batch=1, seed=SEED, eval_samples=50, eval_every=1)
    ours = build(GptIndexed(files=files, sequence=SEQUENCE, order="megatron", split=(90, 9, 1)), run)
    peers = theirs(paths, weights, "90,9,1", (1000, 50))
    assert_equal(ours, peers, (len(peers[0]), len(peers[1])))


def test_one_weighted_file_equals_the_blend_of_one(tmp_path: Path, run_of: Callable[..., Run]) -> None:
    path = write(tmp_path / "tokens", "uint16", 300, seed=5)
    run = run_of(steps=100, global_batch=10, micro_batch=1, seed=SEED, eval_samples=50, eval_every=1)
    ours = build(GptIndexed(files=(f"1:{path}",), sequence=SEQUENCE, order="megatron", split=(90, 10)), run)
    assert_equal(ours, theirs([path], [1.0], "90,10", (1000, 50)), (1000, 50))


EMPTY = {"before": range(5), "between": range(150, 170), "after": [400] * 7, "everywhere": range(0, 401, 3)}
"""Before which of 400 documents, and after the last, an empty one stands."""


@pytest.mark.parametrize("where", EMPTY)
def test_empty_documents_change_no_sample(tmp_path: Path, run_of: Callable[..., Run], where: str) -> None:
    """As preprocess_data writes them: documents without any sequence."""
    random = np.random.default_rng(8)
    with IndexedWriter(tmp_path / "tokens", "uint16") as writer:
        for number in range(401):
            for _ in range(list(EMPTY[where]).count(number)):
                writer.add_document([])
            if number < 400:
                writer.add_document([random.integers(0, 65000, random.integers(1, 90))])
    path = str(tmp_path / "tokens")
    run = run_of(steps=100, global_batch=10, micro_batch=1, seed=SEED, eval_samples=50, eval_every=1)
    ours = build(GptIndexed(files=(path,), sequence=SEQUENCE, order="megatron", split=(90, 9, 1)), run)
    assert_equal(ours, theirs([path], None, "90,9,1", (1000, 50)), (1000, 50))
