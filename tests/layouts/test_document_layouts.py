"""Rows of several documents under every layout: what one process computes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from recipe_core.hooks.registry import load
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job
from recipe_megatron_gpt.data.indexed import IndexedWriter

Cases = Mapping[str, Sequence[str]]
STEPS = 20
WORDS = [
    "model.positions=32", "data.sequence=32", "data.document_mask=true", f"train.steps={STEPS + 1}",
    f"train.stop_after={STEPS}", "train.lr=1e-3", "model.dropout=0", "model.attention_dropout=0",
]  # fmt: skip
ONE: Cases = {
    "single": ["layout=single"],
    "micro batch 1": ["layout=single", "train.micro_batch=1"],
    "micro batch 4": ["layout=single", "train.micro_batch=4"],
    "recomputed": ["layout=single", "train.activation_checkpointing=true"],
}
TWO: Cases = {
    "ddp": ["layout=ddp"],
    "zero1": ["layout=zero1"],
    "fsdp": ["layout=fsdp"],
    "tp": ["layout=tp"],
    "tp, sequence": ["layout=tp", "layout.sequence_parallel=true"],
    "tp, recomputed": ["layout=tp", "layout.sequence_parallel=true", "train.activation_checkpointing=true"],
    "pp": ["layout=pp"],
    "pp, micro batch 4": ["layout=pp", "train.micro_batch=4"],
}
SOME = ("fsdp", "tp, sequence", "pp")
"""Those that run by default."""
FOUR: Cases = {
    "pp x tp": ["layout=pp", "layout.tp=2"],
    "pp x tp, sequence": ["layout=pp", "layout.tp=2", "layout.sequence_parallel=true"],
    "tp x fsdp": ["layout=tp", "layout.data=fsdp"],
}
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Token files of documents of 1 to 50 tokens."""
    prefix, chance = tmp_path_factory.mktemp("data") / "tokens", np.random.default_rng(3)
    sizes = chance.integers(1, 50, 300)
    with IndexedWriter(prefix, "uint16") as writer:
        writer.add_documents(chance.integers(0, 512, sizes.sum()).astype(np.uint16), sizes)
    return str(prefix)


def in_turn(cases: Cases, words: Sequence[str], folder: str) -> None:
    """Body of one process, for all of ``cases``."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # not in every release

    registry, store = load(), os.environ.get("RECIPE_STORE")
    for number, (name, more) in enumerate(cases.items()):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        job = checked_job(registry, "megatron_gpt:tiny", [*WORDS, *words, *more], int(os.environ["WORLD_SIZE"]))
        run(job, Path(folder, name))
        _clear_sharding_prop_cache()


def values(folder: Path, name: str, key: str) -> dict[int, float]:
    return {row["step"]: row[key] for row in read_rows(folder / name / METRICS) if key in row}


def assert_as_single(folder: Path, names: Sequence[str]) -> None:
    for key in ("loss", "grad_norm", "val_loss", "padding"):
        wanted = values(folder, "single", key)
        assert len(wanted) >= STEPS // 4, key
        for name in names:
            assert values(folder, name, key) == pytest.approx(wanted, abs=1e-5), (name, key)


@pytest.mark.parametrize("rows", ["cut", "packed"])
def test_layouts_compute_the_same(rows: str, tokens: str, tmp_path: Path) -> None:
    words = [f"data.files={tokens}", f"data.rows={rows}"]
    alone = {name: ONE[name] for name in ("single", "micro batch 4")}
    spawn(in_turn, 1, alone, words, str(tmp_path), timeout=900)
    spawn(in_turn, 2, {name: TWO[name] for name in SOME}, words, str(tmp_path), timeout=900)
    assert_as_single(tmp_path, [*alone, *SOME])
    padding = values(tmp_path, "single", "padding").values()
    assert (max(padding) == 0) == (rows == "cut")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_layouts_compute_the_same(tokens: str, tmp_path: Path) -> None:
    words = [f"data.files={tokens}"]
    unmasked = {"unmasked": ["layout=single", "data.document_mask=false"]}
    spawn(in_turn, 1, {**ONE, **unmasked}, words, str(tmp_path), timeout=900)
    spawn(in_turn, 2, TWO, words, str(tmp_path), timeout=900)
    assert_as_single(tmp_path, [*ONE, *TWO])
    assert values(tmp_path, "unmasked", "loss")[1] != pytest.approx(values(tmp_path, "single", "loss")[1], abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_compiled_model_computes_the_same(tokens: str, tmp_path: Path) -> None:
    cases = {"single": ONE["single"], "compiled": ["layout=single", "train.compile=true"]}
    spawn(in_turn, 1, cases, [f"data.files={tokens}"], str(tmp_path), timeout=1800)
    assert_as_single(tmp_path, ["compiled"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_layouts_of_four_processes_compute_the_same(tokens: str, tmp_path: Path) -> None:
    words = [f"data.files={tokens}"]
    spawn(in_turn, 1, {"single": ONE["single"]}, words, str(tmp_path), timeout=900)
    spawn(in_turn, 4, FOUR, words, str(tmp_path), timeout=1800)
    assert_as_single(tmp_path, list(FOUR))


@pytest.mark.parametrize("rows", ["cut", "packed"])
def test_a_resumed_run_is_exact(rows: str, tokens: str, tmp_path: Path) -> None:
    words = [f"data.files={tokens}", f"data.rows={rows}", "layout=single", "model.dropout=0.1"]

    for name, stops in (("resumed", (7, STEPS)), ("whole", (STEPS,))):
        for stop in stops:
            spawn(in_turn, 1, {name: [*words, f"train.stop_after={stop}"]}, (), str(tmp_path))
    for key in ("loss", "grad_norm", "val_loss", "padding"):
        resumed, whole = (values(tmp_path, name, key) for name in ("resumed", "whole"))
        assert {step: resumed[step] for step in whole} == whole  # the first part ends with an evaluation of its own
