"""Other data from a sample on: which samples come, on any number of ranks, and what a run may still change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recipe_core import DataFacts
from recipe_core.layouts.parallel import Run
from recipe_core.layouts.samples.build import Read
from recipe_core.testing import Finished, run_tiny, runs
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.train.feed import Feed
from recipe_megatron_gpt.data import blend
from recipe_megatron_gpt.data.arrays import cached as arrays
from recipe_megatron_gpt.data.arrays.indices import index_facts
from recipe_megatron_gpt.data.facts import facts
from recipe_megatron_gpt.data.identity import identity
from recipe_megatron_gpt.data.samples import build
from recipe_megatron_gpt.settings import GptIndexed, Phase

SEQUENCE = 16
SIZES = [int(size) for size in np.random.default_rng(0).integers(1, 40, 60)]
FIRST = {"a": 0, "b": 10_000, "c": 20_000}
"""First token id of each file; the ids count upwards, so that a sample shows its file and its place."""


@pytest.fixture
def files(write_tokens: Callable[..., str]) -> dict[str, str]:
    return {name: write_tokens(SIZES[len(name) :], name, first=first) for name, first in FIRST.items()}


@pytest.fixture
def config(files: dict[str, str]) -> GptIndexed:
    a, b, c = files.values()
    phases = (Phase(at=7, files=(a, b)), Phase(at=200, files=(f"0.2:{b}", f"0.8:{c}")), Phase(at=333, files=(c, a)))
    return GptIndexed(files=(a,), phases=phases, sequence=SEQUENCE, split=(9, 1))


def first_ids(read: Read, start: int, count: int, split: str = "train") -> list[int]:
    ids: list[int] = read(split, start, count)["tokens"][:, 0].tolist()
    return ids


def of_file(ids: list[int], name: str) -> list[int]:
    return [i for i in ids if FIRST[name] <= i < FIRST[name] + 10_000]


def test_each_file_continues_where_it_was(
    config: GptIndexed, files: dict[str, str], run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is read in its own order, from the start, whatever the phases: nothing twice in an epoch, no gap."""
    monkeypatch.setattr(blend, "PERIOD", 50)  # the choices of files repeat within a phase
    samples = build(config, run_of())
    ids = first_ids(samples.read, 0, 900)
    for name, path in files.items():
        alone = build(replace(config, files=(path,), phases=()), run_of())
        own = of_file(ids, name)
        assert len(own) > 100
        assert own == first_ids(alone.read, 0, len(own))
    assert not of_file(ids[:7], "b")
    assert len(of_file(ids[200:333], "c")) == round(0.8 * 133)
    assert not of_file(ids[200:333], "a")
    assert not of_file(ids[333:], "b")


def test_a_file_is_the_same_under_every_spelling_of_its_path(
    files: dict[str, str], run_of: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = f"../{tmp_path.name}/a.bin"
    config = GptIndexed(files=("a",), phases=(Phase(at=5, files=(other,)),), sequence=SEQUENCE, split=(1,))
    plain = GptIndexed(files=(files["a"],), sequence=SEQUENCE, split=(1,))
    assert first_ids(build(config, run_of()).read, 0, 30) == first_ids(build(plain, run_of()).read, 0, 30)


def test_a_phase_changes_no_earlier_sample(config: GptIndexed, run_of: Callable[..., Run]) -> None:
    all_of_them = first_ids(build(config, run_of()).read, 0, 400)
    for count, phase in enumerate(config.phases):
        before = build(replace(config, phases=config.phases[:count]), run_of(steps=3))
        assert first_ids(before.read, 0, phase.at) == all_of_them[: phase.at]


def test_any_batch_reads_as_it_does_from_the_start(
    config: GptIndexed, run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "SMALL", 0)
    whole = build(config, run_of()).read("train", 0, 400)
    for start, count in [(330, 6), (5, 2), (6, 2), (7, 1), (199, 140), (0, 400), (333, 60)]:
        batch = build(config, run_of()).read("train", start, count)
        for name, tensor in batch.items():
            assert torch.equal(tensor, whole[name][start : start + count])


def test_every_number_of_ranks_reads_the_same_samples(config: GptIndexed, run_of: Callable[..., Run]) -> None:
    """The boundaries at 7 and 333 are inside of micro batches."""
    run = run_of(global_batch=12, micro_batch=2)
    expected = first_ids(build(config, run).read, 0, 420)

    def recorded(rank: int, ranks: int) -> dict[int, int]:
        one = replace(run, rank=rank, world_size=ranks, dp_rank=rank, dp_size=ranks)
        ids = {}
        with Feed(build(config, one).read, one) as feed:
            for consumed in range(0, 420, 12):
                batches, firsts = feed.step(consumed, last=consumed == 408)
                for batch, first in zip(batches, firsts, strict=True):
                    ids |= {first + place: int(row[0]) for place, row in enumerate(batch["tokens"])}
        return ids

    for ranks in (1, 2, 3):
        ids: dict[int, int] = {}
        for rank in range(ranks):
            of_rank = recorded(rank, ranks)
            assert not ids.keys() & of_rank.keys()
            ids |= of_rank
        assert [ids[number] for number in range(420)] == expected


def test_validation_stays_with_the_first_files(config: GptIndexed, run_of: Callable[..., Run]) -> None:
    with_phases, plain = build(config, run_of()), build(replace(config, phases=()), run_of())
    assert first_ids(with_phases.read, 0, 50, "valid") == first_ids(plain.read, 0, 50, "valid")
    held_out = set(with_phases.read("valid", 0, 50)["tokens"].flatten().tolist())
    assert not held_out & set(with_phases.read("train", 0, 900)["tokens"].flatten().tolist())


def test_facts_count_each_file_once(config: GptIndexed, files: dict[str, str]) -> None:
    alone = {name: facts(replace(config, files=(path,), phases=())) for name, path in files.items()}
    assert facts(config) == DataFacts(
        sequence=SEQUENCE,
        train_samples=sum(one.train_samples or 0 for one in alone.values()),
        valid_samples=alone["a"].valid_samples,
        phases=(7, 200, 333),
    )
    missing = replace(config, files=("none/*",), phases=(Phase(at=1, files=("gone/*", files["a"])),))
    assert [text.partition(":")[0] for text in facts(missing).problems] == ["none/*", "gone/*"]


def test_indices_are_those_of_all_phases(
    config: GptIndexed, run_of: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipe_megatron_gpt.data.arrays import indices

    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    for module in (arrays, indices):
        monkeypatch.setattr(module, "SMALL", 0)
    run = run_of(steps=50, global_batch=8)
    beforehand = index_facts(config, run.train)
    samples = build(config, run)
    for start in range(0, 400, 8):
        samples.read("train", start, 8)
    built = [np.load(path).nbytes for path in (tmp_path / "cache/gpt_indexed").glob("*.npy") if "seq" not in path.name]
    assert beforehand.files == 3
    assert beforehand.disk == sum(built)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"phases": (Phase(at=0, files=("b",)),)}, "phases: expected rising numbers above 0 for `at`, got [0]"),
        ({"phases": (Phase(at=5, files=("b",)), Phase(at=5, files=("c",)))}, "phases: expected rising numbers above 0"),
        ({"phases": (Phase(at=5, files=("b",)),), "order": "megatron"}, "order: megatron shuffles all samples of a"),
    ],
)
def test_phases_that_cannot_be(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # compared below
        GptIndexed(files=("a",), **settings)
    assert str(error.value).startswith(problem)
    for wrong in ((), ("0:a",), ("1:a", "b")):
        with pytest.raises(ValueError, match=r"files: expected|files: some"):
            Phase(at=1, files=wrong)


def test_the_identity_says_what_each_phase_reads(config: GptIndexed, files: dict[str, str]) -> None:
    whole = identity(config)
    assert replace(whole, phases={}) == identity(replace(config, phases=()))
    assert {at: dict(one.order) for at, one in whole.phases.items()} == {
        7: {"weights": "by tokens", "numbers": "0-1"},
        200: {"weights": [0.2, 0.8], "numbers": "1-2"},
        333: {"weights": "by tokens", "numbers": "2, 0"},
    }
    # A copy begins anew where the file itself would continue.
    for ending in (".bin", ".idx"):
        shutil.copy(f"{files['a']}{ending}", f"{files['a']}-copy{ending}")
    copied = identity(replace(config, phases=(Phase(at=7, files=(f"{files['a']}-copy", files["b"])),)))
    assert copied.phases[7].content == whole.phases[7].content
    assert copied.phases[7] != whole.phases[7]


PHASES = "data.phases=[{{at: 21, files: [{a}, {b}]}}, {{at: 32, files: ['0.3:{b}', '0.7:{c}']}}]"
"""In tiny, a step has 8 samples and a micro batch 2: 21 is inside of the third step's third micro batch."""
Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str]) -> Typed:
    return runs.typed(capfd)


@pytest.fixture
def tiny(files: dict[str, str], tmp_path: Path) -> Callable[..., Finished]:
    def start(name: str, *words: str) -> Finished:
        fixed = ("model.vocabulary=30000", f"data.files={files['a']}", "train.save_every=1", "train.keep=9")
        return run_tiny("megatron_gpt", tmp_path / name, *fixed, *words)

    return start


def losses(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if "loss" in name or name == "step"} for row in rows]


def test_a_run_whose_phases_were_added_equals_one_that_had_them(
    files: dict[str, str], tiny: Callable[..., Finished], tmp_path: Path
) -> None:
    """It stops before, at and after the boundaries; all losses and the last checkpoint agree to the last bit."""
    phases = PHASES.format(**files)
    from_start = tiny("whole", phases)
    rows = []
    for words in (["train.stop_after=2"], [phases, "train.stop_after=2"], [phases, "train.stop_after=2"], [phases]):
        rows = tiny("parts", *words).rows
    assert losses(rows) == losses(from_start.rows)
    assert {row["consumed_samples"] for row in rows} >= {16, 32, 48, 64}
    whole, parts = (tensors(tmp_path / name / "checkpoints/step-8") for name in ("whole", "parts"))
    assert equal(whole, parts)


def test_the_past_of_a_run_stays_as_it_was(
    files: dict[str, str], tiny: Callable[..., Finished], typed: Typed, tmp_path: Path
) -> None:
    tiny("run", "train.stop_after=2")
    run = tmp_path / "run"
    head = f"{run} was trained on other data:\n  - data.phases, from sample "

    code, said = typed("run", run, f"data.phases=[{{at: 15, files: [{files['b']}]}}]")
    assert code == 2
    assert f"{head}15 on: is new; the run has read 16 samples, and a new phase begins at 16 or later\n" in said
    assert "phases: []" in (run / "job.yaml").read_text()

    later = f"data.phases=[{{at: 16, files: [{files['a']}, {files['b']}]}}, {{at: 40, files: [{files['c']}]}}]"
    assert typed("run", run, later, "train.stop_after=1")[0] == 0
    for changed, difference in (
        ("data.phases=[]", "16 on: was recorded, and is missing now; the run has read 24 samples"),
        (later.replace("at: 16", "at: 17"), "16 on: was recorded, and is missing now; the run has read 24 samples"),
        (later.replace(files["b"], files["c"]), "16 on: the data: digest "),
        (later.replace(files["b"], f"1:{files['b']}").replace(files["a"], f"2:{files['a']}"),
         "16 on: data.weights: by tokens was recorded, now [2.0, 1.0]"),
    ):  # fmt: skip
        code, said = typed("run", run, changed)
        assert (code, f"{head}{difference}" in said) == (2, True), said
    # What is not read yet may change, go, and come; another run takes it up likewise.
    assert typed("run", run, later.replace("at: 40", "at: 24"), "train.stop_after=1")[0] == 0
    other = (
        "run",
        "megatron_gpt:tiny",
        "model.vocabulary=30000",
        f"data.files={files['a']}",
        "--out",
        tmp_path / "two",
    )
    resume = f"train.resume={run}/checkpoints/step-3"
    code, said = typed(*other, resume, "data.phases=[]")
    assert (code, "data.phases, from sample 16 on: was recorded, and is missing now" in said) == (2, True), said
    only_first = later.partition(", {at: 40")[0] + "]"
    assert typed(*other, resume, only_first, "train.stop_after=1")[0] == 0
