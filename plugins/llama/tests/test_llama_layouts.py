"""Every layout computes what one process computes, and resumes from the checkpoints of the others."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from recipe_core.hooks.registry import load
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

LAYOUTS: Mapping[str, tuple[int, Sequence[str]]] = {
    "single": (1, ["layout=single"]),
    "ddp": (2, ["layout=ddp"]),
    "zero1": (2, ["layout=zero1"]),
    "fsdp": (2, ["layout=fsdp"]),
    "tp": (2, ["layout=tp"]),
    "tp, sequence": (2, ["layout=tp", "layout.sequence_parallel=true"]),
    "pp": (2, ["layout=pp"]),
    "pp x tp": (4, ["layout=pp", "layout.tp=2"]),
}
"""Processes and arguments of a run, by layout."""
ALL = list(LAYOUTS)
KINDS: Mapping[str, Sequence[str]] = {
    "llama": ["model.rope_type=llama3", "model.rope_factor=4", "model.rope_original_positions=16"],
    "mistral": ["model.tied=true", "model.window=9"],
    "qwen2": ["model.attention_bias=qkv", "model.tied=true"],
    "qwen3": ["model.qk_norm=true", "model.attention_bias=all", "model.head_dim=32"],
    "documents": ["data.document_mask=true", "data.rows=packed", "model.window=9", "model.window_from=1"],
}
STEPS = 20
WORDS = ["train.log_every=1", "train.eval_every=0", "train.lr=3e-3", "train.warmup_steps=0"]
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]
Numbers = dict[int, tuple[float, float]]
"""Loss and gradient norm of each step."""


def in_turn(cases: Mapping[str, Sequence[str]], folder: str) -> None:
    """Body of one process: train under several layouts, one after the other."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    registry, store = load(), os.environ.get("RECIPE_STORE")
    for number, (name, words) in enumerate(cases.items()):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        run(checked_job(registry, "llama:tiny", words, int(os.environ["WORLD_SIZE"])), Path(folder, name))
        _clear_sharding_prop_cache()  # or DTensor reuses meshes of this run, whose groups are destroyed


def runs(cases: Mapping[str, tuple[str, Sequence[str]]], folder: Path) -> dict[str, Numbers]:
    """Train each case, a layout with further arguments; those with as many processes share these."""
    counts = {name: LAYOUTS[layout][0] for name, (layout, _) in cases.items()}
    for processes in sorted(set(counts.values())):
        words = {
            name: [*WORDS, *words, *LAYOUTS[layout][1]]
            for name, (layout, words) in cases.items()
            if counts[name] == processes
        }
        spawn(in_turn, processes, words, str(folder), timeout=1800)
    found: dict[str, Numbers] = {}
    for name in cases:
        rows = [row for row in read_rows(folder / name / METRICS) if "grad_norm" in row]
        found[name] = {row["step"]: (row["loss"], row["grad_norm"]) for row in rows}
    return found


def assert_agree(names: Sequence[str], words: Sequence[str], folder: Path) -> None:
    """Each step under the layouts ``names`` equals that of one process."""
    found = runs({name: (name, [f"train.steps={STEPS}", *words]) for name in ("single", *names)}, folder)
    expected = found.pop("single")
    assert list(expected) == list(range(1, STEPS + 1))
    assert expected[STEPS][0] < expected[1][0] - 0.2  # it learns, or the comparison would prove little
    for name, numbers in found.items():
        assert numbers == {step: pytest.approx(pair, abs=1e-5) for step, pair in expected.items()}, name


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        pytest.param("qwen3", ["fsdp", "tp, sequence", "pp"], id="qwen3-some"),
        pytest.param("documents", ["ddp", "tp", "pp"], id="documents-some"),
        *(pytest.param(kind, ALL[1:], id=f"{kind}-all", marks=SLOW) for kind in KINDS),
    ],
)
def test_losses_and_norms(kind: str, names: Sequence[str], tmp_path: Path) -> None:
    assert_agree(names, KINDS[kind], tmp_path)


def assert_resumes(pairs: Iterable[tuple[str, str]], words: Sequence[str], folder: Path) -> None:
    """A run of the second layout resumes where one of the first stopped."""
    pairs, words = list(pairs), ["train.steps=5", *words]
    (wanted,) = runs({"wanted": ("single", [*words, "train.stop_after=4"])}, folder).values()
    sources = dict.fromkeys(first for first, _ in pairs)
    runs({f"{name} saved": (name, [*words, "train.stop_after=2"]) for name in sources}, folder)
    cases = {}
    for first, second in pairs:
        saved = folder / f"{first} saved" / "checkpoints" / "step-2"
        cases[f"{first} to {second}"] = second, [*words, "train.stop_after=2", f"train.resume={saved}"]
    for name, numbers in runs(cases, folder).items():
        assert numbers == {step: pytest.approx(wanted[step], abs=1e-5) for step in (3, 4)}, name


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([("tp", "pp"), ("pp", "single")], id="some"),
        pytest.param(
            itertools.pairwise(
                ["single", "tp", "pp", "fsdp", "pp x tp", "zero1", "tp, sequence", "ddp", "pp x tp", "single"]
            ),
            id="round",
            marks=SLOW,
        ),
    ],
)
def test_saved_under_one_and_resumed_under_another(pairs: Iterable[tuple[str, str]], tmp_path: Path) -> None:
    assert_resumes(pairs, KINDS["qwen2"], tmp_path)
