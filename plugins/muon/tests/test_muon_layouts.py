"""Muon under every layout: one curve, and runs that stop, resume and change their layout."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from recipe_core.hooks.registry import load
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

pytest.importorskip("recipe_megatron_gpt", reason="recipe-megatron-gpt is not installed")

Cases = Mapping[str, tuple[int, Sequence[str]]]
STEPS = 8
WORDS = [
    "optimizer=muon", "optimizer.compute=fp32", "train.lr=5e-3", "train.weight_decay=0.1", "train.eval_every=0",
    "train.log_every=1", f"train.steps={STEPS + 1}", "model.positions=32", "data.sequence=32",
]  # fmt: skip
LAYOUTS: Cases = {
    "single": (1, ["layout=single"]),
    "ddp": (2, ["layout=ddp"]),
    "zero1": (2, ["layout=zero1"]),
    "fsdp": (2, ["layout=fsdp"]),
    "tp": (2, ["layout=tp"]),
    "tp, sequence": (2, ["layout=tp", "layout.sequence_parallel=true"]),
    "pp": (2, ["layout=pp"]),
}
FOUR: Cases = {
    "single": (1, ["layout=single"]),
    "tp x fsdp": (4, ["layout=tp", "layout.data=fsdp"]),
    "tp x zero1": (4, ["layout=tp", "layout.data=zero1"]),
    "pp x tp": (4, ["layout=pp", "layout.tp=2"]),
    "fsdp": (4, ["layout=fsdp"]),
}


def in_turn(cases: Mapping[str, Sequence[str]], folder: str) -> None:
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # not in every release

    registry, store = load(), os.environ.get("RECIPE_STORE")
    for number, (name, words) in enumerate(cases.items()):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        job = checked_job(registry, "megatron_gpt:tiny", [*WORDS, *words], int(os.environ["WORLD_SIZE"]))
        run(job, Path(folder, name))
        _clear_sharding_prop_cache()


def curves(cases: Cases, folder: Path, *words: str) -> dict[str, dict[int, float]]:
    """The losses of runs by their names; those of as many processes run one after the other in the same ones."""
    for processes in sorted({count for count, _ in cases.values()}):
        some = {name: [*mine, *words] for name, (count, mine) in cases.items() if count == processes}
        spawn(in_turn, processes, some, str(folder), timeout=600)
    return {name: {row["step"]: row["loss"] for row in read_rows(folder / name / METRICS)} for name in cases}


@pytest.mark.parametrize("cases", [LAYOUTS, pytest.param(FOUR, marks=pytest.mark.slow)], ids=["two", "four"])
def test_the_losses_are_those_of_one_process(cases: Cases, tmp_path: Path) -> None:
    found = curves(cases, tmp_path, f"train.stop_after={STEPS}")
    alone = found["single"]
    assert alone[STEPS] < alone[1] - 0.1  # it trains
    for name, losses in found.items():
        assert losses.keys() == alone.keys()
        assert max(abs(losses[step] - alone[step]) for step in alone) < 1e-5, name


def test_it_resumes_to_the_last_bit(tmp_path: Path) -> None:
    """In bf16 as by default, on one process and with shards; the checkpoints, too, byte by byte."""
    cases = {name: LAYOUTS[name] for name in ("single", "fsdp")}
    words = ("optimizer.compute=bf16", f"train.steps={STEPS}")
    whole = curves(cases, tmp_path / "whole", *words)
    curves(cases, tmp_path / "half", *words, "train.stop_after=4")
    assert curves(cases, tmp_path / "half", *words) == whole
    for name in cases:
        last = Path(name, "checkpoints", f"step-{STEPS}")
        files = [path.name for path in sorted((tmp_path / "whole" / last).glob("*.distcp"))]
        assert files
        for file in files:
            assert (tmp_path / "half" / last / file).read_bytes() == (tmp_path / "whole" / last / file).read_bytes()


@pytest.mark.slow
def test_one_layout_goes_on_from_another(tmp_path: Path) -> None:
    whole = curves({"single": LAYOUTS["single"]}, tmp_path / "whole", f"train.stop_after={STEPS}")["single"]
    curves({"run": LAYOUTS["fsdp"]}, tmp_path, "train.stop_after=4")
    later = curves({"run": LAYOUTS["tp"]}, tmp_path, "train.stop_after=4")["run"]
    assert max(abs(later[step] - whole[step]) for step in whole) < 1e-5
