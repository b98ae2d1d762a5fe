"""Every layout computes what one process computes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from recipe_core.testing import spawn

LAYOUTS: Mapping[str, tuple[int, Sequence[str]]] = {
    "single": (1, ["layout=single"]),
    "ddp": (2, ["layout=ddp"]),
    "zero1": (2, ["layout=zero1"]),
    "fsdp": (2, ["layout=fsdp"]),
    "tp": (2, ["layout=tp"]),
    "tp with sequence parallel": (2, ["layout=tp", "layout.sequence_parallel=true"]),
    "pp": (2, ["layout=pp"]),
    "pp x tp": (4, ["layout=pp", "layout.tp=2"]),
}
"""Processes and arguments of a run, by layout."""
STEPS = 20
WORDS = [f"train.steps={STEPS}", "train.log_every=1", "train.eval_every=0", "train.lr=3e-3", "train.warmup_steps=0"]


def in_turn(cases: Mapping[str, Sequence[str]], folder: str) -> None:
    """Body of one process: train under several layouts, one after the other."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    from recipe_core.hooks.registry import load
    from recipe_core.train.run import run
    from recipe_core.train.start.check import checked_job

    registry, store = load(), os.environ.get("RECIPE_STORE")
    for number, (name, words) in enumerate(cases.items()):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        run(checked_job(registry, "decoder:tiny", words, int(os.environ["WORLD_SIZE"])), Path(folder, name))
        _clear_sharding_prop_cache()  # or DTensor reuses meshes of this run, whose groups are destroyed


def numbers(folder: Path) -> dict[int, tuple[float, float]]:
    """Return loss and gradient norm of each step."""
    from recipe_core.train.metrics.curves import METRICS, read_rows

    rows = [row for row in read_rows(folder / METRICS) if "grad_norm" in row]
    return {row["step"]: (row["loss"], row["grad_norm"]) for row in rows}


def agree(names: Sequence[str], words: Sequence[str], folder: Path) -> None:
    """Train under the layouts ``names``; each step has to equal that of one process."""
    cases = {name: LAYOUTS[name] for name in ("single", *names)}
    for processes in sorted({count for count, _ in cases.values()}):
        of_these = {name: [*WORDS, *words, *rest] for name, (count, rest) in cases.items() if count == processes}
        spawn(in_turn, processes, of_these, str(folder), timeout=1800)
    expected = numbers(folder / "single")
    assert list(expected) == list(range(1, STEPS + 1))
    assert expected[STEPS][0] < expected[1][0] - 0.2  # it learns, or the comparison would prove little
    for name in names:
        assert numbers(folder / name) == {step: pytest.approx(pair, abs=1e-5) for step, pair in expected.items()}, name


@pytest.mark.timeout(600)
def test_layouts_agree(tmp_path: Path) -> None:
    agree(["fsdp", "tp with sequence parallel", "pp"], ["model.tied=false"], tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tied", ["true", "false"])
def test_all_layouts_agree(tied: str, tmp_path: Path) -> None:
    agree(list(LAYOUTS)[1:], [f"model.tied={tied}"], tmp_path)
