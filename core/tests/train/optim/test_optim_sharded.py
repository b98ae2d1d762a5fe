"""Optimizers on DTensors of several meshes among plain tensors: what one process computes with whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from recipe_core import Train
from recipe_core.engine import protocol as engines
from recipe_core.layouts.reduction.reducer import local_shard
from recipe_core.testing import spawn
from recipe_core.train.optim import build
from recipe_core.train.optim.shards import positions

# Multiples of 16 columns: the rest of a tensor is computed by other instructions, which may round differently.
SHAPES = {"plain": (5, 32), "rows": (7, 32), "one row": (1, 48), "columns": (7, 32), "copies": (3, 16), "bias": (96,)}
CASES: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw in bf16": {"precision": "bf16"},
    "adamw rounded": {"precision": "bf16", "stochastic_rounding": True},
    "adamw with master": {"precision": "bf16", "optimizer_states": "master"},
    "adamw with fp32 states, rounded": {
        "precision": "bf16", "optimizer_states": "fp32", "stochastic_rounding": True,
    },
    "lamb": {"optimizer": "lamb"},
    "lamb with master": {"optimizer": "lamb", "precision": "bf16", "optimizer_states": "master"},
}  # fmt: skip


def values(name: str, step: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + list(SHAPES).index(name))
    return torch.randn(SHAPES[name], generator=generator).to(dtype)


def train(case: str) -> Train:
    return Train(lr=0.02, weight_decay=0.1, **CASES[case])


def run(case: str, place: Callable[[str, Tensor], Tensor]) -> dict[str, Tensor]:
    """Three steps; whole weights and master weights by name."""
    settings = train(case)
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    named = {name: nn.Parameter(place(name, values(name, 0, dtype))) for name in SHAPES}
    made = build(named.items(), settings)
    for step in range(1, 4):
        for name, parameter in named.items():
            parameter.grad = place(name, values(name, step, dtype))
        made.step()
    found = {name: whole(parameter.detach()) for name, parameter in named.items()}
    masters = {f"{name}.master": made.state[p]["master"] for name, p in named.items() if "master" in made.state[p]}
    return found | {name: whole(master) for name, master in masters.items()}


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed(mesh: DeviceMesh, other: DeviceMesh) -> Callable[[str, Tensor], Tensor]:
    places = {
        "rows": (mesh, [Shard(0)]),
        "one row": (mesh, [Shard(0)]),  # the second rank has nothing of it
        "columns": (other, [Shard(1)]),
        "copies": (mesh, [Replicate()]),
        "bias": (other, [Shard(0)]),
    }
    return lambda name, tensor: tensor if name not in places else distribute_tensor(tensor, *places[name])


class Mlp(nn.Module):
    """Weights and biases that hold their own positions."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(5, 12), nn.Linear(12, 7)
        self.kernel = nn.Parameter(torch.zeros(6, 2, 3))
        for parameter in self.parameters():
            parameter.data = torch.arange(parameter.numel()).view(parameter.shape).float()


def positions_hold(mesh: DeviceMesh) -> bool:
    """True if the positions are those of the local parts, under tensor parallel and, on two axes, FSDP on top."""
    module = parallelize_module(Mlp(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if mesh.ndim > 1:
        fully_shard(module, mesh=mesh["dp"])
    found = []
    for parameter in module.parameters():
        rows, columns = positions(parameter)
        width = parameter[0].numel() if parameter.ndim > 1 else 0
        expected = (rows[:, None] * width + columns).float()
        found.append(expected.flatten().equal(local_shard(parameter).flatten()))
    return all(found)


def sums_not_made_yet(mesh: DeviceMesh, rank: int) -> tuple[Tensor, Tensor]:
    """A weight and its first moment after a step with gradients of which each rank has a summand."""
    weight = nn.Parameter(distribute_tensor(torch.ones(2, 3), mesh, [Replicate()]))
    weight.grad = DTensor.from_local(torch.full((2, 3), 2.0 if rank else -1.0), mesh, [Partial()], run_check=False)
    made = build([("weight", weight)], Train(lr=0.1, weight_decay=0.0))
    made.step()
    return weight.to_local().detach(), whole(made.state[weight]["exp_avg"])


def one_of_two(cases: list[str]) -> tuple[list[dict[str, Any]], bool, list[Any]]:
    """Everything that two ranks find out, without tensors, which do not outlive their process."""
    with engines.start(Train(device="cpu", timeout=60)) as engine:
        mesh, other = engine.mesh({"dp": 2}), engine.mesh({"tp": 2})
        assert mesh is not None
        assert other is not None
        found = [plain(run(case, placed(mesh, other))) for case in cases]
        return found, positions_hold(other), [t.tolist() for t in sums_not_made_yet(other, engine.rank)]


def one_of_four() -> bool:
    with engines.start(Train(device="cpu", timeout=60)) as engine:
        mesh = engine.mesh({"dp": 2, "tp": 2})
        assert mesh is not None
        return positions_hold(mesh)


def plain(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def two() -> list[tuple[list[dict[str, Any]], bool, list[Any]]]:
    return spawn(one_of_two, 2, list(CASES))


@pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES))
def test_two_ranks_get_what_one_gets(number: int, two: list[Any]) -> None:
    case = list(CASES)[number]
    expected = plain(run(case, lambda name, tensor: tensor))
    found, others = (rank[0][number] for rank in two)
    assert found.keys() == others.keys() == expected.keys()
    for name, value in found.items():
        assert (value == others[name]).all(), name
        if case.startswith("adamw"):
            assert (value == expected[name]).all(), name
        elif name.endswith("master") or case == "lamb":  # norms are summed in another order
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6)


def test_a_gradient_that_is_not_placed_as_its_weight_is_brought_there(two: list[Any]) -> None:
    for _, _, (weight, moment) in two:
        np.testing.assert_allclose(weight, np.full((2, 3), 0.9), rtol=1e-6)
        np.testing.assert_allclose(moment, np.full((2, 3), 0.1), rtol=1e-6)  # of -1 + 2


def test_positions_of_what_a_rank_holds(two: list[Any]) -> None:
    assert all(held for _, held, _ in two)


def test_positions_of_what_a_rank_holds_under_fsdp_and_tensor_parallel() -> None:
    assert all(spawn(one_of_four, 4))


def test_positions_of_whole_tensors() -> None:
    for shape in ((), (4,), (3, 4), (3, 4, 5)):
        rows, columns = positions(torch.zeros(shape))
        assert rows.tolist() == list(range(shape[0] if len(shape) > 1 else 1))
        assert columns.tolist() == list(range(torch.zeros(shape).numel() // len(rows)))
