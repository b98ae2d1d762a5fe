"""Samples from object storage: equal to local ones, with few bytes, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from recipe_core.data.prepare.manifest import file_facts, manifest_text
from recipe_core.errors import DataError
from recipe_core.files.objects.ranges import coalesced, joined_within
from recipe_core.layouts.parallel import Run
from recipe_core.testing.objects import ObjectServer
from recipe_core.train.feed import micro_batch_starts
from recipe_megatron_gpt.data import facts, identity
from recipe_megatron_gpt.data.samples import GptSamples
from recipe_megatron_gpt.data.sources import parse
from recipe_megatron_gpt.settings import GptIndexed, Phase

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'recipe-core[s3]'")
SIZES = Random(2).choices((0, 1, 7, 300, 900), k=200)


def read(samples: GptSamples, run: Run, steps: range) -> dict[int, dict[str, torch.Tensor]]:
    """Batches of a rank in some steps, in the order of training, and an evaluation after the first of them."""
    found = {}
    for step in steps:
        for start in micro_batch_starts(run, step * run.train.global_batch, run.train.global_batch):
            found[start] = samples.read("train", start, run.train.micro_batch)
        if step == steps.start and run.train.eval_every:
            for start in micro_batch_starts(run, 0, run.train.eval_samples):
                found[-1 - start] = samples.read("valid", start, run.train.micro_batch)
    return found


def equal(first: dict[int, dict[str, torch.Tensor]], second: dict[int, dict[str, torch.Tensor]]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[key][name], second[key][name]) for key in first for name in first[key])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"document_mask": True},
        {"document_mask": True, "rows": "packed"},
        {"order": "megatron"},
        {"dtype": "int32"},
    ],
    ids=str,
)
def test_samples_equal_local_ones(settings: dict[str, Any], sets: Any, run_of: Callable[..., Run]) -> None:
    settings = dict(settings)
    dtype = settings.pop("dtype", "uint16")
    local = [str(sets.write(name, SIZES, seed, dtype)) for seed, name in enumerate(("a", "b"))]
    remote = ["s3://bucket/data/a", "s3://bucket/data/b.idx"]
    run = run_of(steps=20, global_batch=8, micro_batch=2, eval_every=1, eval_samples=6)
    for weights in ((), ("1", "3")):
        batches = []
        for files in (local, remote):
            named = tuple(f"{weight}:{file}" for weight, file in zip(weights, files, strict=True)) if weights else files
            config = GptIndexed(files=tuple(named), sequence=50, split=(90, 10), **settings)
            batches.append(read(GptSamples(config, run), run, range(20)))
        assert equal(*batches)


def test_phases(sets: Any, run_of: Callable[..., Run]) -> None:
    local = [str(sets.write(name, SIZES, seed)) for seed, name in enumerate(("a", "b"))]
    run = run_of(steps=12, global_batch=4, micro_batch=2, eval_every=0)
    batches = []
    for first, second in (local, ["s3://bucket/data/a", "s3://bucket/data/b"]):
        config = GptIndexed(files=(first,), phases=(Phase(at=18, files=(first, second)),), sequence=50)
        batches.append(read(GptSamples(config, run), run, range(12)))
    assert equal(*batches)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_bytes_fetched_by_bytes_used(ranks: int, sets: Any, server: ObjectServer, run_of: Callable[..., Run]) -> None:
    sets.write("tokens", Random(3).choices(range(50, 1500), k=2000))
    run = run_of(steps=10, global_batch=32, micro_batch=4, eval_every=0)
    config = GptIndexed(files=("s3://bucket/data/tokens",), sequence=128, split=(1,))
    for rank in range(ranks):
        one = replace(run, dp_rank=rank, dp_size=ranks, rank=rank, world_size=ranks)
        read(GptSamples(config, one), one, range(10))
    used = 10 * 32 * (128 + 1) * 2
    assert 0.99 * used < server.served["bucket/data/tokens.bin"] <= 1.1 * used  # neighbors share a token


def test_the_next_two_steps_are_fetched(sets: Any, server: ObjectServer, run_of: Callable[..., Run]) -> None:
    sets.write("tokens", SIZES)
    run = run_of(steps=5, global_batch=4, micro_batch=2, eval_every=0)
    config = GptIndexed(files=("s3://bucket/data/tokens",), sequence=50, split=(1,))
    samples = GptSamples(config, run)
    samples.read("train", 0, 2)
    ahead = samples._ahead
    assert ahead is not None
    assert [(span.first, span.stop) for span in ahead._spans] == [(0, 4), (4, 8), (8, 12)]
    for span in ahead._spans:
        span.blocks.result(timeout=60)
    before = len(server.requests)
    for start in (2, 4, 6, 8, 10):
        samples.read("train", start, 2)
        if start == 2:
            assert len(server.requests) == before
    assert [(span.first, span.stop) for span in ahead._spans] == [(8, 12), (12, 16), (16, 20)]
    samples.read("train", 1, 2)  # elsewhere: correct, and careful afterwards
    assert [(span.first, span.stop) for span in ahead._spans] == [(1, 3)]


def test_memory_is_bounded(sets: Any, run_of: Callable[..., Run]) -> None:
    sets.write("tokens", [3000] * 300)
    run = run_of(steps=5, global_batch=600, micro_batch=2, eval_every=0)
    config = GptIndexed(files=("s3://bucket/data/tokens",), sequence=1000, split=(1,), fetch_memory=1)
    with pytest.raises(DataError, match=r"data.fetch_memory: one step of this process needs 1.\d MB.*samples 0 to 599"):
        GptSamples(config, run).read("train", 0, 2)
    samples = GptSamples(replace(config, fetch_memory=2), run)
    samples.read("train", 0, 2)
    assert samples._ahead is not None
    assert len(samples._ahead._spans) == 1  # there is no room for the next


def test_what_addresses_name(sets: Any, tmp_path: Path) -> None:
    for name in ("a", "b", "sub/c"):
        sets.write(name, SIZES)

    def named(*files: str) -> list[str]:
        return [str(source.prefix).removeprefix("s3://bucket/data/") for source in parse(files)]

    assert named("s3://bucket/data") == ["a", "b"]
    assert named("s3://bucket/data/sub/") == ["sub/c"]
    assert named("s3://bucket/data/*.bin") == named("s3://bucket/data/?") == ["a", "b"]
    assert named("s3://bucket/data/*/c", "s3://bucket/data/a.idx") == ["sub/c", "a"]
    (tmp_path / "list").write_text("# both\n2 s3://bucket/data/a\n1:s3://bucket/data/sub/c\n", encoding="utf-8")
    sources = parse([f"@{tmp_path / 'list'}"])
    assert [source.weight for source in sources] == [2, 1]
    folder = parse(["3:s3://bucket/data"])
    assert [source.weight for source in folder] == [1.5, 1.5]
    with pytest.raises(DataError, match="name it once"):
        parse(["s3://bucket/data/a", "s3://bucket/data/a.bin"])


@pytest.mark.parametrize(
    "pattern",
    ["**", "**/*.bin", "**/*.idx", "**/c", "sub/**/c", "*/deep/**", "**/deep/*", "*", "s?b/*", "**/[a-c].bin"],
)
def test_patterns_mean_what_they_mean_on_a_disk(sets: Any, pattern: str) -> None:
    for name in ("a", "sub/c", "sub/deep/c", "sub/deep/more/d", "sub/.hidden/e", ".f"):
        sets.write(name, SIZES)

    def found(place: object) -> set[str]:
        return {str(source.prefix).removeprefix(f"{place}/") for source in parse([f"{place}/{pattern}"])}

    assert found(sets.folder) == found("s3://bucket/data")


def test_the_identity_is_that_of_the_local_files(sets: Any) -> None:
    prefix = sets.write("tokens", SIZES)
    config = GptIndexed(files=(str(prefix),), sequence=50)
    remote = replace(config, files=("s3://bucket/data/tokens",))
    assert identity.identity(remote) == identity.identity(config)
    assert facts.facts(remote) == facts.facts(config)
    files = file_facts(prefix.parent, ["tokens.bin", "tokens.idx"])
    (prefix.parent / "manifest.json").write_text(manifest_text({"files": files}), encoding="utf-8")
    sets.put("manifest.json")
    assert identity.identity(remote) == identity.identity(config)
    assert identity.identity(remote).manifest
    assert json.loads((prefix.parent / "manifest.json").read_text())["files"] == files


def test_ranges_are_joined_over_small_gaps() -> None:
    chance = np.random.default_rng(0)
    ranges = [(int(start), int(start) + 50) for start in chance.integers(0, 20_000, 200)]
    exact, joined = coalesced(ranges), joined_within(ranges, 0.05)
    used, fetched = (sum(stop - start for start, stop in some) for some in (exact, joined))
    assert used < fetched <= 1.05 * used
    assert len(joined) < len(exact)
    assert joined_within([(0, 5)], 0.05) == [(0, 5)]
    assert joined_within([], 0.05) == []
