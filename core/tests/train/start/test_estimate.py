"""Estimates of a run: figures computed by hand, and PyTorch's own count of bytes if it is installed."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from pathlib import Path
from typing import get_args

import pytest

from recipe_core import DataFacts, ModelFacts, Train
from recipe_core.hooks.train import OptimizerStates, Precision
from recipe_core.settings.facts import adam_facts
from recipe_core.train.start.check import machine
from recipe_core.train.start.check.estimate import WIDTHS, Estimate, estimate
from recipe_core.train.start.check.machine import Memory

MODEL = ModelFacts(
    parameters=1_000_000,
    flops_per_sample=6e9,
    activation_values=50_000,
    recomputed_activation_values=8_000,
    logits_values=3_000,
)
DATA = DataFacts(sequence=128, train_samples=400)


def figures(train: Train, data: DataFacts = DATA) -> Estimate:
    return estimate(MODEL, data, train, optimizer=adam_facts(None, train, MODEL))


def test_figures_in_fp32() -> None:
    found = figures(Train(steps=100, global_batch=32, micro_batch=4))
    assert (found.weights, found.gradients, found.optimizer) == (4_000_000, 4_000_000, 8_000_000)
    assert (found.activations, found.logits) == (4 * 50_000 * 4, 4 * 3_000 * 4)
    assert found.memory == 16_000_000 + 848_000
    assert found.checkpoint == 12_000_000
    assert found.flops_per_step == 32 * 6e9
    assert found.tokens_per_step == 32 * 128
    assert (found.samples, found.epochs) == (3200, 8.0)


def test_figures_in_bf16() -> None:
    pure = figures(Train(precision="bf16", micro_batch=1))
    assert (pure.weights, pure.gradients, pure.optimizer) == (2_000_000, 2_000_000, 4_000_000)
    assert (pure.activations, pure.logits, pure.checkpoint) == (100_000, 6_000, 6_000_000)
    mixed = figures(Train(precision="bf16_mixed", micro_batch=1))
    assert (mixed.weights, mixed.gradients, mixed.optimizer) == (6_000_000, 4_000_000, 8_000_000)
    assert (mixed.activations, mixed.logits, mixed.checkpoint) == (100_000, 6_000, 12_000_000)


def test_wider_states_of_bf16_weights_count_in_memory_and_on_disk() -> None:
    wide, master = (
        figures(Train(precision="bf16", optimizer="lamb", optimizer_states=states)) for states in ("fp32", "master")
    )
    assert (wide.weights, wide.gradients, wide.optimizer, wide.checkpoint) == (2e6, 2e6, 8e6, 10e6)
    assert (master.weights, master.gradients, master.optimizer, master.checkpoint) == (2e6, 2e6, 12e6, 14e6)


def combinations() -> list[tuple[Precision, OptimizerStates]]:
    taken = []
    for precision, states in itertools.product(get_args(Precision), get_args(OptimizerStates)):
        with contextlib.suppress(ValueError):
            Train(precision=precision, optimizer_states=states)
            taken.append((precision, states))
    return taken


def test_recomputation_keeps_less_and_counts_no_operations() -> None:
    plain, lean = (figures(Train(micro_batch=2, activation_checkpointing=on)) for on in (False, True))
    assert lean.activations == 2 * 8_000 * 4
    assert lean.flops_per_step == plain.flops_per_step


@pytest.mark.parametrize(
    ("train", "count"),
    [
        (Train(steps=100), 1),
        (Train(steps=100, save_every=10, keep=2), 3),
        (Train(steps=100, save_every=100, keep=2), 1),
        (Train(steps=100, save_every=50, keep=2), 2),
        (Train(steps=101, save_every=50, keep=5), 3),
        (Train(steps=100, save_every=10, keep=0), 10),
        (Train(steps=100, save_every=10, keep=0, stop_after=25), 3),
    ],
)
def test_checkpoints_that_exist_at_once(train: Train, count: int) -> None:
    found = figures(train)
    assert found.checkpoints == count
    assert found.disk == count * found.checkpoint


def test_epochs_are_unknown_where_the_samples_are() -> None:
    assert estimate(MODEL, DataFacts(sequence=1), Train()).epochs is None


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize(("precision", "states"), combinations())
def test_widths_are_those_of_pytorch(precision: Precision, states: OptimizerStates, optimizer: str) -> None:
    torch = pytest.importorskip("torch")
    from recipe_core.train.optim import build

    weight = torch.nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16 if precision == "bf16" else torch.float32))
    train = Train(optimizer=optimizer, precision=precision, optimizer_states=states)
    made = build([("weight", weight)], train)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision in ("bf16_mixed", "fp8")):
        output = torch.nn.functional.linear(weight[None], weight[None])
    output.sum().backward()
    made.step()
    moments = [value for value in made.state[weight].values() if value.numel() == weight.numel()]
    width = WIDTHS[precision]
    assert weight.nbytes == 1000 * width.weight
    assert weight.grad is not None
    assert weight.grad.nbytes == 1000 * width.gradient
    assert sum(value.nbytes for value in moments) == 1000 * adam_facts(None, train, MODEL).bytes_per_parameter
    assert output.element_size() == width.activation


def fake_nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_the_memory_of_a_gpu_is_that_of_the_smallest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, "echo 81920; echo 40960", monkeypatch)
    assert machine.memory("cuda") == machine.memory("auto") == Memory(40960 << 20, "one GPU", shared=False)


@pytest.mark.parametrize("script", ["exit 9", "echo '[N/A]'", "exit 0"])
def test_a_driver_that_does_not_answer_leaves_the_memory_unknown(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvidia_smi(tmp_path, script, monkeypatch)
    assert machine.memory("cuda") is None
    assert machine.memory("auto") == machine.memory("cpu")
    assert machine.memory("neuron") is None


def test_the_memory_of_the_machine_is_that_of_its_container_where_that_is_less(tmp_path: Path) -> None:
    proc, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    proc.write_text("MemTotal:       16384000 kB\nMemFree:  100 kB\n")
    for text, total in (
        (None, 16384000 << 10),
        ("max\n", 16384000 << 10),
        ("1000\n", 1000),
        ("99999999999999\n", 16384000 << 10),
    ):
        if text is not None:
            limit.write_text(text)
        assert machine._host(proc, limit) == Memory(total, "this machine", shared=True)
    assert machine._host(tmp_path / "none", limit) is None


def test_space_and_size_of_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    assert machine.free_space(tmp_path / "a" / "b") > 0
    assert machine.size_of(tmp_path / "a") == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"12345")
    assert machine.size_of(tmp_path / "a") == 5
