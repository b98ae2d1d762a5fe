"""neuronx-distributed: the grid of its ranks, and messages if it is not installed."""

from __future__ import annotations

import sys
from datetime import timedelta
from itertools import product
from types import SimpleNamespace

import pytest
from torch import nn

from recipe_core import Train
from recipe_core.engine.machine.packages import Package
from recipe_core.engine.neuron import stack
from recipe_core.engine.select import engine_problems
from recipe_core.errors import ConfigError, LaunchError
from recipe_core.hooks.specs import Part
from recipe_core.layouts.settings import Tp
from recipe_core.plugin import register_layouts
from recipe_xla import machine, mesh, neuronx
from recipe_xla.mesh import DeviceGrid
from recipe_xla.plugin import register_engines
from recipe_xla.settings import XlaSettings

XLA = Part(next(iter(register_engines())), XlaSettings())
TP = next(spec for spec in register_layouts() if spec.name == "tp")
AXES = {"dp": 16, "tp": 4}
APART = [(rank // 32 * 8 + rank % 8, rank % 32 // 8) for rank in range(64)]
"""Positions of the ranks of two trn1.32xlarge with tp=4: a group is every eighth core of a machine."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The groups that would be made on the host, in their order."""
    found: list[list[int]] = []

    def new_group(ranks: list[int], **_: object) -> SimpleNamespace:
        found.append(ranks)
        return SimpleNamespace(ranks=ranks)

    monkeypatch.setattr(mesh.dist, "new_group", new_group)
    return found


@pytest.mark.parametrize("rank", [0, 13, 63])
def test_ranks_stand_where_the_package_places_them(made: list[list[int]], rank: int) -> None:
    grid = DeviceGrid.of_places(AXES, APART, rank, timedelta(seconds=1))
    first = rank // 32 * 32 + rank % 8
    assert grid["tp"].get_group().ranks == (first, first + 8, first + 16, first + 24)
    assert (grid["dp"].get_local_rank(), grid["tp"].get_local_rank()) == APART[rank]
    begin = rank % 32 // 8 * 8
    assert grid["dp"].get_group().ranks == (*range(begin, begin + 8), *range(begin + 32, begin + 40))
    assert {tuple(ranks) for ranks in made} == {*grid["tp"].get_group().every, *grid["dp"].get_group().every}
    assert len(made) == 4 + 16  # all ranks make all of them


def test_neighbours_are_as_in_other_runs(made: list[list[int]]) -> None:
    axes = {"dp": 3, "tp": 2}
    placed = DeviceGrid.of_places(axes, list(product(range(3), range(2))), 3, timedelta(seconds=1))
    ours = DeviceGrid.of_processes(axes, 3, timedelta(seconds=1))
    for axis in axes:
        assert placed[axis].get_group().every == ours[axis].get_group().every
        assert placed[axis].get_local_rank() == ours[axis].get_local_rank()


def test_places_that_make_no_grid(made: list[list[int]]) -> None:
    with pytest.raises(LaunchError, match=r"dp=1 x tp=2 expects a rank at each place .* 0: \(0, 0\), 1: \(0, 0\)"):
        DeviceGrid.of_places({"dp": 1, "tp": 2}, [(0, 0), (0, 0)], 0, timedelta(seconds=1))
    assert made == []


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (None, "layout.tp: neuronx-distributed, which divides layers on Neuron over PyTorch/XLA, is not installed; "),
        (True, "layout.tp: neuronx-distributed 0.1 is here by name alone, an empty package of the public index"),
        (False, None),
    ],
)  # fmt: skip
def test_a_run_needs_the_real_package(
    monkeypatch: pytest.MonkeyPatch, installed: bool | None, message: str | None
) -> None:
    found = None if installed is None else Package("neuronx-distributed", "0.1" if installed else "0.18", installed)
    monkeypatch.setattr(machine, "package", lambda name: found)
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.setenv("PJRT_DEVICE", "NEURON")
    for name in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        monkeypatch.delenv(name, raising=False)
    problems = list(engine_problems(XLA, Train(), Part(TP, Tp())))
    if message is None:
        assert problems == []
    else:
        (text,) = problems
        assert text.startswith(message)
        assert text.endswith("or take layout=ddp, or train.engine=native")
    split = list(engine_problems(XLA, Train(), Part(TP, Tp(sequence_parallel=True))))
    assert split[-1].startswith("layout.sequence_parallel: ")
    shared = list(engine_problems(XLA, Train(), Part(TP, Tp(data="zero1"))))
    assert shared[0].startswith("layout: tp shares states out (zero1)")


def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neuronx_distributed", None)
    with pytest.raises(ConfigError, match=r"layout.tp: neuronx-distributed, .* cannot be imported \(.*; install it"):
        neuronx.column(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("machine", "setting", "size"),
    [("trn1.32xlarge", None, 1), ("trn2.48xlarge", None, 2), ("trn2.48xlarge", "1", 1), ("", None, 1)],
)
def test_the_package_knows_how_cores_are_joined(
    monkeypatch: pytest.MonkeyPatch, machine: str, setting: str | None, size: int
) -> None:
    """With its default of one it would take a group of 64 on a trn2 (cores joined by two) for half a ring."""
    arguments: dict[str, int] = {}
    state = SimpleNamespace(
        model_parallel_is_initialized=lambda: False,
        initialize_model_parallel=lambda **given: arguments.update(given),
        get_data_parallel_rank=lambda: 0,
        get_tensor_model_parallel_rank=lambda: 0,
    )
    monkeypatch.setattr(neuronx, "_module", lambda name: state)
    monkeypatch.setattr(stack, "instance", lambda: machine)
    monkeypatch.setattr(neuronx.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(neuronx.dist, "all_gather_object", lambda places, own: places.__setitem__(0, own))
    monkeypatch.setattr(neuronx.DeviceGrid, "of_places", lambda *args: None)
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    if setting:
        monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", setting)
    neuronx.grid({"dp": 1, "tp": 1}, 0, timedelta(seconds=1), on_xla=False)
    assert arguments == {"tensor_model_parallel_size": 1, "lnc_size": size}
