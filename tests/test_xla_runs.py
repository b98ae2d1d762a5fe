"""Recipes on PyTorch/XLA: the losses of native PyTorch, and a compiler that is left alone after the second step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from recipe_core.checkpoint.formats.dcp_metadata import read_metadata
from recipe_core.hooks.train import Train
from recipe_core.testing import spawn
from recipe_core.testing.runs import Finished, command, run_tiny
from recipe_xla.settings import XlaSettings

pytestmark = [
    pytest.mark.xla,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("torch_xla") is None, reason="needs torch-xla"),
]
EXACT = ("model.dropout=0", "model.attention_dropout=0")
"""Devices have random numbers of their own, so that only runs without dropout are the same."""
CPU = {
    "PJRT_DEVICE": "CPU",
    # Compiling takes most of the time of these tests, and less so when the code need not be fast.
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}
Runner = Callable[..., Finished]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Runs by their words, each made once."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def made(recipe: str, *words: str) -> Finished:
        return run_tiny(recipe, folder / "-".join([recipe, *words]).replace("/", "_"), *words, timeout=500, **CPU)

    return made


def require_same(one: Finished, two: Finished) -> None:
    """All losses and norms of two runs, within 1e-5."""
    for key in ("loss", "grad_norm", "val_loss"):
        found, expected = one.column(key), two.column(key)
        assert found
        assert found.keys() == expected.keys()
        assert max(abs(found[step] - expected[step]) for step in found) < 1e-5, key


def require_left_alone(run: Finished, each: int, at_evaluation: int, at_save: int, first: int = 2) -> None:
    """No graph after the step ``first``, whatever is saved and evaluated; and no transfers but those that are meant.

    Args:
        run: twenty steps of :data:`LONG`.
        each: transfers of a step and its row of metrics.
        at_evaluation: of an evaluation.
        at_save: of a save.
        first: the step by which all has been met that there is.
    """
    compiled, transfers = run.column("graphs_compiled"), run.column("host_transfers")
    assert compiled[2] > 0
    assert len({compiled[step] for step in range(2, first)}) <= 1
    assert {compiled[step] for step in range(first, 21)} == {compiled[first]}
    found = [transfers[step] - transfers[step - 1] for step in range(2, 21)]
    # What follows a row is counted in the next one.
    expected = [each + at_evaluation * (step % 6 == 1) + at_save * (step % 4 == 1) for step in range(2, 21)]
    assert found == expected


LONG = (*EXACT, "train.steps=20", "train.eval_every=6", "train.save_every=4")
PAIR = ("layout=ddp", "--processes", "2")
TEAM = ("layout.tp=4", "--processes", "4")
"""Four devices of one process that divide every layer."""


@pytest.mark.parametrize(
    ("recipe", "words", "native", "each", "at_save"),
    [
        ("megatron_gpt", (), (), 1, 1),
        ("bert_dp", (), (), 1, 1),
        # The gradients go over the host, as one flat tensor.
        pytest.param("bert_dp", PAIR, PAIR, 2, 1, marks=pytest.mark.slow),
        # What is whole and what is cut is fetched by a call each.
        ("bert_tp", TEAM, ("layout.tp=1",), 1, 2),
    ],
)
def test_twenty_steps(
    run: Runner, recipe: str, words: tuple[str, ...], native: tuple[str, ...], each: int, at_save: int
) -> None:
    """The losses of native PyTorch; the warm-up begins at a learning rate of exactly zero."""
    xla = run(recipe, *LONG, *words, "train.engine=xla")
    assert xla.results["device"] == "xla"
    require_same(xla, run(recipe, *LONG, *native, "train.engine=native"))
    require_left_alone(xla, each, 1, at_save)


def test_a_dry_run_tells_how_many_graphs_a_run_has(run: Runner) -> None:
    done = command("precompile", "megatron_gpt:tiny", *LONG, "train.engine=xla", timeout=300, **CPU)
    assert done.returncode == 0, done.stdout
    whole = run("megatron_gpt", *LONG, "train.engine=xla")
    count = whole.results["compilations"]
    assert count == whole.column("graphs_compiled")[20]
    assert f"{count} graphs, {count} compilations" in done.stdout
    assert "XLA on CPU finds none of another's" in done.stdout


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("train.optimizer=lamb", "train.activation_checkpointing=true"), 1e-5),
        (("train.precision=bf16",), 0.02),  # numbers of 8 bits
    ],
)
def test_other_arithmetic(run: Runner, words: tuple[str, ...], near: float) -> None:
    """Three steps as natively."""
    line = (
        "megatron_gpt",
        *EXACT,
        "model.layers=1",
        "train.steps=3",
        "train.global_batch=2",
        "train.eval_every=0",
        *words,
    )
    xla, native = run(*line, "train.engine=xla").column(), run(*line, "train.engine=native").column()
    assert xla.keys() == native.keys() == {1, 2, 3}
    assert max(abs(xla[step] - native[step]) for step in xla) < near


def test_fine_tuning(run: Runner) -> None:
    """The Trainer of Hugging Face, twenty steps."""
    words = LONG[2:]
    xla, native = run("hf_finetune", *words, "train.engine=xla"), run("hf_finetune", *words, "train.engine=native")
    assert "xla" in xla.text.splitlines()[0]
    require_same(xla, native)
    assert xla.results["f1"] == native.results["f1"]
    # Evaluations are of four batches; the first comes after step 6. A save fetches the model, then the optimizer.
    require_left_alone(xla, 1, 4, 2, first=7)
    compiled = xla.column("graphs_compiled")
    assert compiled[7] == compiled[6] + 1


@pytest.mark.slow
def test_fine_tuning_on_two_processes(run: Runner) -> None:
    """They see other samples, and average gradients and losses."""
    words = ("model.layers=1", "train.steps=2", "train.micro_batch=4", "train.eval_every=2", "--processes", "2")
    xla = run("hf_finetune", *words, "train.engine=xla")
    require_same(xla, run("hf_finetune", *words, "train.engine=native"))


def test_fine_tuning_goes_on_elsewhere(run: Runner, tmp_path: Path) -> None:
    """Two steps natively, two on XLA, then native ones again: the losses of a native run."""
    words = (*LONG[2:], "train.stop_after=2")
    for engine in ("native", "xla", "native"):
        found = run_tiny("hf_finetune", tmp_path, *words, f"train.engine={engine}", timeout=500, **CPU).column()
    whole = run("hf_finetune", *LONG[2:], "train.engine=native").column()
    assert found.keys() == set(range(1, 7))
    assert max(abs(found[step] - whole[step]) for step in found) < 1e-5


def test_two_processes(run: Runner) -> None:
    """Another model, data parallel."""
    words = (*EXACT, *PAIR, "train.steps=4", "train.eval_every=2")
    xla = run("megatron_gpt", *words, "train.engine=xla")
    assert (xla.results["device"], xla.results["world_size"]) == ("xla", 2)
    require_same(xla, run("megatron_gpt", *words, "train.engine=native"))


TWICE = """
import json, sys
from pathlib import Path
from recipe_core.train.metrics.curves import read_rows
from recipe_core.settings.job import resolve
from recipe_core.hooks.registry import load
from recipe_core.train.run import run

found = []
for number, words in enumerate(json.loads(sys.argv[2])):
    out = Path(sys.argv[1]) / str(number)
    run(resolve(load(), "megatron_gpt:tiny", words), out)
    found.append([row.get("graphs_compiled") for row in read_rows(out / "metrics.jsonl")][-1])
print("compiled", json.dumps(found))
"""


def test_settings_that_change_compile_nothing_more(tmp_path: Path) -> None:
    """Another learning rate, number of steps and of micro batches (more than one), a save between steps: no graph."""
    base = ["train.engine=xla", "train.steps=4", "train.eval_every=2", "train.global_batch=8"]
    other = ["train.engine=xla", "train.steps=6", "train.eval_every=2", "train.global_batch=4", "train.lr=1e-2"]
    saves = [*other, "train.save_every=1", "train.schedule=constant", "train.warmup_steps=0"]
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(tmp_path), json.dumps([base, other, saves])],
        env={**os.environ, **CPU, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("compiled "))
    first, *others = json.loads(line.removeprefix("compiled "))
    assert first > 0
    assert others == [first, first]


def exchanged() -> tuple[list[float], str, list[float]]:
    """A mean over two ranks, and what PyTorch's own collective says to an XLA tensor."""
    from recipe_xla.engine import XlaEngine

    os.environ.update(CPU)
    with XlaEngine(XlaSettings(), Train(), one_process=False) as engine:
        grid = engine.mesh({"dp": 2})
        assert grid is not None
        group = grid["dp"].get_group()
        mine = torch.full((2,), 1.0 + engine.rank, device=engine.device)
        found = engine.collectives.mean(mine, group)
        assert found.device.type == "xla"
        try:
            dist.all_reduce(mine)
            said = ""
        except RuntimeError as error:
            said = str(error)
        engine.barrier()
        everywhere = engine.mean(torch.tensor([float(engine.rank)], device=engine.device))
        result = engine.read(found).tolist(), said, everywhere.tolist()
        del grid, group
        return result


def test_ranks_meet_through_collectives_alone() -> None:
    for mean, said, everywhere in spawn(exchanged, 2):
        assert mean == [1.5, 1.5]
        assert "was given an XLA tensor, and gloo would give it back as it was" in said
        assert everywhere == [0.5]


def _native(words: tuple[str, ...], out: Path) -> Finished:
    """A native run, by the interpreter that $RECIPE_NATIVE_PYTHON names, else by this one."""
    python = os.environ.get("RECIPE_NATIVE_PYTHON")
    if python is None:
        return run_tiny("bert_tp", out, *words, "train.engine=native", timeout=500)
    line = [python, "-m", "recipe_core.cli", "run", "bert_tp:tiny", *words, "train.engine=native", "--out", str(out)]
    done = subprocess.run(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(row) for row in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return Finished(out, rows, json.loads((out / "results.json").read_text(encoding="utf-8")), done.stdout)


def test_a_checkpoint_goes_there_and_back(tmp_path: Path) -> None:
    """Native, two ranks of tp; then XLA, tp 2 x dp 2 by SPMD; then native again: the losses of one run of six steps."""
    plain = (*EXACT, "train.steps=6", "train.eval_every=0", "layout.tp=2")
    whole = _native((*plain, "--processes", "2"), tmp_path / "whole").column()
    words = (*plain, "train.stop_after=2")
    out = tmp_path / "there"
    _native((*words, "--processes", "2"), out)
    native = read_metadata(out / "checkpoints" / "step-2").state_dict_metadata
    there = run_tiny("bert_tp", out, *words, "train.engine=xla", "--processes", "4", timeout=500, **CPU)
    assert there.results["device"] == "xla"
    saved = read_metadata(out / "checkpoints" / "step-4").state_dict_metadata
    # Each part once, though two devices hold it, and nothing lost: as many as native ranks wrote.
    parts = {name: len(getattr(entry, "chunks", ())) for name, entry in saved.items()}
    assert parts == {name: len(getattr(entry, "chunks", ())) for name, entry in native.items()}
    assert set(parts.values()) == {0, 1, 2}
    back = _native((*words, "--processes", "2"), out).column()
    assert back.keys() == whole.keys() == set(range(1, 7))
    assert max(abs(back[step] - whole[step]) for step in whole) < 1e-5
