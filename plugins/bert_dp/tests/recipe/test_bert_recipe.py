"""The recipe through the real command: settings of its variants, closing summary, and messages about mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from recipe_bert_dp.closing import unigram_entropy
from recipe_bert_dp.settings import BertHdf5
from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import load
from recipe_core.settings.job import resolve
from recipe_core.testing import command, run_tiny

PHASE1 = {"sequence": 128, "max_predictions": 20}
PHASE2 = {"sequence": 512, "max_predictions": 80}
LARGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "large-phase1": (PHASE1, {
        "micro_batch": 16, "global_batch": 16384, "lr": 4e-4, "warmup_steps": 2000, "steps": 28125,
        "precision": "bf16", "stochastic_rounding": True, "optimizer": "adamw", "schedule": "linear",
    }),
    "large-phase2": (PHASE2, {
        "micro_batch": 2, "global_batch": 32768, "lr": 2.8e-4, "warmup_steps": 781, "steps": 1563,
        "precision": "bf16", "stochastic_rounding": True, "optimizer": "adamw", "schedule": "linear",
    }),
    "large-lamb-phase1": (PHASE1, {
        "global_batch": 65536, "lr": 6e-3, "warmup_ratio": 0.2843, "warmup_steps": 0, "steps": 7038,
        "optimizer": "lamb", "schedule": "polynomial",
    }),
    "large-lamb-phase2": (PHASE2, {
        "global_batch": 32768, "lr": 4e-3, "warmup_ratio": 0.128, "warmup_steps": 0, "steps": 1563,
        "optimizer": "lamb", "schedule": "polynomial",
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("packed", [None, True])
def test_figures_of_the_published_recipes(name: str, packed: bool | None) -> None:
    data, train = LARGE[name]
    args = [] if packed is None else ["data.packed=true"]
    job = resolve(load(), f"bert_dp:{name}", [*args, "train.init_from=phase1"] if "2" in name else args)
    assert asdict(job.train).items() >= train.items()
    assert asdict(job.data.config).items() >= {**data, "packed": packed, "files": ()}.items()
    sizes = job.model.config.sizes
    assert (sizes.layers, sizes.hidden, sizes.heads, sizes.vocabulary) == (24, 1024, 16, 30522)
    assert job.train.global_batch % (8 * job.train.micro_batch) == 0


@pytest.mark.parametrize("name", ["large-phase2", "large-lamb-phase2"])
def test_phase_2_needs_a_start(name: str) -> None:
    done = command("check", f"bert_dp:{name}")
    assert done.returncode == 2
    assert "train.init_from" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("packed", ["false", "true"])
def test_tiny_reports_the_unigram_entropy(tmp_path: Path, packed: str) -> None:
    done = run_tiny("bert_dp", tmp_path / "run", f"data.packed={packed}", "train.steps=2")
    assert 5 < done.results["unigram_entropy"] < np.log(1000)
    assert f"{done.results['unigram_entropy']:.4f} nats: the masked-word loss" in done.text
    assert {"first_mlm_loss", "mlm_loss", "val_mlm_loss"} <= done.results.keys()


def test_unigram_entropy(shards: Path, packed: Path) -> None:
    """-sum(p log p) by hand over all masked words, the same for packed shards."""
    words: list[int] = []
    for path in (shards / "training").iterdir():
        with h5py.File(path) as file:
            words += file["masked_lm_ids"][:][file["masked_lm_positions"][:] > 0].tolist()
    shares = np.unique(words, return_counts=True)[1] / len(words)
    expected = -(shares * np.log(shares)).sum()
    for folder in (shards, packed):
        config = BertHdf5(files=(str(folder),), sequence=64, max_predictions=10)
        assert unigram_entropy(config) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("word", [-1, 2**31 - 1])
def test_a_word_that_no_vocabulary_has_takes_no_memory(shards: Path, word: int) -> None:
    """A run may finish before it reads the invalid row."""
    config = BertHdf5(files=(str(shards),), sequence=64, max_predictions=10)
    expected = unigram_entropy(config)
    with h5py.File(shards / "training" / "training_00001.hdf5", "r+") as file:
        file["masked_lm_positions"][7, 0] = 1
        file["masked_lm_ids"][7, 0] = word
    assert unigram_entropy(config) == pytest.approx(expected, abs=0.1)


Prepared = Callable[[Path], None]


def without_a_key(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["segment_ids"]


def with_a_large_id(path: Path) -> None:
    (path.parents[1] / "manifest.json").unlink()  # its file size would be reported instead
    with h5py.File(path, "r+") as file:
        file["input_ids"][7, 3] = 28_996


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def nothing(path: Path) -> None:
    pass


def removed(path: Path) -> None:
    for other in path.parent.parent.rglob("*.hdf5"):
        other.unlink()


@pytest.mark.parametrize(
    ("damage", "args", "message"),
    [
        (without_a_key, (), "training_00001.hdf5: lacks the array(s) segment_ids; expected input_ids, input_mask"),
        (with_a_large_id, ("model.vocabulary=99",), "training_00001.hdf5: row 7: input_ids holds 28996, expected 0 to"),
        (truncated, (), "training_00001.hdf5: is truncated; copy or prepare it again"),
        (removed, (), "no shard (*.hdf5) in it; prepare some with recipe prepare"),
        (nothing, ("data.sequence=128", "model.positions=128"), "has 64 tokens a row, but data.sequence=128; set it"),
        (nothing, ("data.max_predictions=5",), "has 10 predictions a row, but data.max_predictions=5; set it to 10"),
        (nothing, ("model.vocabulary=20",), "raise model.vocabulary to at least 28"),
        (nothing, ("data.packed=true",), "has one sample a row, but data.packed=true; make packed shards with"),
        (nothing, ("data.files=/none/at/all",), "/none/at/all: there is no such file or folder; expected HDF5 shards"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_message(
    shards: Path, tmp_path: Path, damage: Prepared, args: tuple[str, ...], message: str
) -> None:
    damage(shards / "training" / "training_00001.hdf5")
    line = ("run", "bert_dp:tiny", f"data.files={shards}", "train.eval_every=0", "train.steps=300")
    done = command(*line, *args, "--out", str(tmp_path / "run"))
    assert done.returncode == 2, done.stdout
    assert message in done.stdout
    assert "Traceback" not in done.stdout
    assert done.stdout.count("recipe run: ") == 1


def test_a_mistake_on_two_ranks_is_reported_once(shards: Path, tmp_path: Path) -> None:
    """Only one rank may read the row; the others must not wait for it."""
    with_a_large_id(shards / "training" / "training_00001.hdf5")
    line = ("run", "bert_dp:tiny", f"data.files={shards}", "train.eval_every=0", "train.steps=300", "--processes", "2")
    done = command(*line, "model.vocabulary=100", "--out", str(tmp_path / "run"))
    assert done.returncode == 2, done.stdout
    assert done.stdout.count("row 7: input_ids holds 28996, expected 0 to 99") == 1, done.stdout
    assert "Traceback" not in done.stdout


def test_too_many_predictions_for_a_short_row_are_reported_before_a_run() -> None:
    with pytest.raises(ConfigError, match=r"data\.max_predictions: expected at most sequence - 3 = 2, got 10"):
        resolve(load(), "bert_dp:tiny", ["data.sequence=5"])
    assert resolve(load(), "bert_dp:tiny", ["data.sequence=5", "data.files=[shards]"])
