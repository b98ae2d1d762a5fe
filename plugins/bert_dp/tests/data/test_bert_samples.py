"""The samples of a run, recorded by number: the same on any number of processes, resumed or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_bert_dp.data import samples as data
from recipe_core.hooks.registry import load
from recipe_core.layouts.parallel import Batch
from recipe_core.testing import spawn
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

STEPS, BATCH = 9, 8
Seen = list[tuple[int, list[int]]]
"""First sample of each micro batch in the order of the run, and the numbers of its samples."""


def recorded(out: str, world_size: int, *args: str) -> Seen:
    seen: Seen = []
    read = data.BertSamples.read

    def note(samples: data.BertSamples, split: str, start: int, count: int) -> Batch:
        batch = read(samples, split, start, count)
        seen.append((start, batch["input_ids"][:, 0].tolist()))
        return batch

    data.BertSamples.read = note  # type: ignore[method-assign]
    settings = (
        "data.sequence=8", "data.max_predictions=1", "model.vocabulary=3000", f"train.steps={STEPS}",
        f"train.global_batch={BATCH}", "train.micro_batch=2", "train.eval_every=0",
    )  # fmt: skip
    run(checked_job(load(), "bert_dp:tiny", (*settings, *args), world_size, Path(out)), Path(out))
    return seen


def stream(ranks: list[Seen]) -> dict[int, int]:
    """Number of each sample by its place in the run, from the records of all ranks."""
    numbers_by_place: dict[int, int] = {}
    for seen in ranks:
        for start, numbers in seen:
            assert numbers_by_place.keys().isdisjoint(range(start, start + len(numbers))), "a sample was seen twice"
            numbers_by_place.update(enumerate(numbers, start))
    return numbers_by_place


def one_process(out: Path, files: str, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    monkeypatch.setattr(data.BertSamples, "read", data.BertSamples.read)  # restored at the end
    seen = stream([recorded(str(out), 1, files)])
    monkeypatch.undo()
    return seen


def test_seven_unequal_shards_on_four_ranks(
    tmp_path: Path, write_numbered: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = 0
    for shard, rows in enumerate((1, 300, 17, 256, 513, 2, 100)):
        first = write_numbered(tmp_path / "data" / f"training_{shard}.hdf5", first, rows)
    files = f"data.files={tmp_path / 'data'}"
    whole = one_process(tmp_path / "one", files, monkeypatch)
    assert sorted(whole) == list(range(STEPS * BATCH))
    assert len(set(whole.values())) == len(whole)
    assert stream(spawn(recorded, 4, str(tmp_path / "four"), 4, files)) == whole


@pytest.mark.slow
def test_resumed_on_other_numbers_of_processes(
    tmp_path: Path, write_numbered: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 2 and then 4 ranks, more than there are shards, resume in the middle of a shard and cross the end of an
    epoch."""
    write_numbered(tmp_path / "data" / "training_0.hdf5", 0, 41)
    files = f"data.files={tmp_path / 'data'}"
    whole = one_process(tmp_path / "one", files, monkeypatch)
    assert sorted(list(whole.values())[:41]) == list(range(41))
    parts: dict[int, int] = {}
    for ranks in (1, 2, 4):
        part = stream(spawn(recorded, ranks, str(tmp_path / "parts"), ranks, files, "train.stop_after=3"))
        assert len(part) == 3 * BATCH
        parts |= part
    assert parts == whole
