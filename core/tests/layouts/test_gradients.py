"""Norm and scale of gradients that are whole, sharded and replicated; and their mean over copies of a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from recipe_core.engine import protocol as engines
from recipe_core.hooks.train import Train
from recipe_core.layouts.reduction import gradients, reducer
from recipe_core.layouts.reduction.reducer import Reducer
from recipe_core.testing import spawn

LIMITS = (0.5, 1e6)


def values() -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=make) for shape in [(6, 3), (5, 2), (4,), (2, 2)]]


def mixed() -> list[list[Any]]:
    with engines.start(Train(device="cpu")) as engine:
        mesh = engine.mesh({"dp": 2, "tp": 2})
        assert mesh is not None
        return [_mixed(mesh, limit) for limit in LIMITS]


def _mixed(mesh: DeviceMesh, limit: float) -> list[Any]:
    """Norm, and values after clipping, of gradients on two meshes and on none."""
    places = [(mesh, [Shard(0), Shard(1)]), (mesh, [Shard(0), Replicate()]), (mesh["tp"], [Shard(0)]), None]
    parameters = []
    for value, place in zip(values(), places, strict=True):
        whole = value if place is None else distribute_tensor(value, place[0], place[1], src_data_rank=None)
        parameters.append(nn.Parameter(whole))
        parameters[-1].grad = parameters[-1].detach().clone()
    norm = gradients.total_norm([p.grad for p in parameters if p.grad is not None])
    gradients.clip(parameters, limit, norm)
    after = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in parameters]
    return [norm.item(), [a.numpy() for a in after if a is not None]]


def test_norm_and_clipping_are_those_of_whole_gradients() -> None:
    ranks = spawn(mixed, 4)
    for case, limit in enumerate(LIMITS):
        whole = [nn.Parameter(value) for value in values()]
        for parameter in whole:
            parameter.grad = parameter.detach().clone()
        norm = nn.utils.clip_grad_norm_(whole, limit)
        for found, after in (rank[case] for rank in ranks):
            assert found == pytest.approx(norm.item(), rel=1e-6)
            for value, parameter in zip(after, whole, strict=True):
                torch.testing.assert_close(torch.from_numpy(value), parameter.grad, rtol=1e-6, atol=0)


class Net(nn.Module):
    """Three layers, of which one gets no gradient and one is narrower in its numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.unused = nn.Linear(2, 2)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3).to(torch.bfloat16)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x.to(next(layer.parameters()).dtype)))
        return x.float().sum()


CASES = {"a bucket each": (1, True), "few": (1 << 20, True), "at the end": (40, False)}


def averaged() -> dict[str, dict[str, Any]]:
    with engines.start(Train(device="cpu")) as engine:
        return {name: _averaged(engine.rank, *case) for name, case in CASES.items()}


def _averaged(rank: int, bucket: int, armed: bool) -> dict[str, Any]:
    """Gradients of two micro batches, averaged over ranks, with how many exchanges began before the end."""
    reducer.BUCKET = bucket
    module, group = Net(), torch.distributed.group.WORLD
    assert group is not None
    averages = Reducer(list(module.parameters()), group)
    for number in range(2):
        if number == 1 and armed:
            averages.arm()
        module(torch.full((1, 3), 1.0 + number + 2 * rank)).backward()
    early = len(averages._started)
    averages.finish()
    found = {n: p.grad.float().numpy() for n, p in module.named_parameters() if p.grad is not None}
    return {"early": early, "gradients": found}


def test_mean_over_ranks() -> None:
    whole = Net()
    for number in (1.0, 2.0, 3.0, 4.0):
        (whole(torch.full((1, 3), number)) / 2).backward()
    wanted = {n: p.grad.float() for n, p in whole.named_parameters() if p.grad is not None}
    for rank in spawn(averaged, 2):
        assert [rank[name]["early"] for name in CASES] == [6, 1, 0]
        for name in CASES:
            found = rank[name]["gradients"]
            assert found.keys() == wanted.keys()
            for parameter, gradient in wanted.items():
                tolerance = 2e-2 if parameter.startswith("layers.2") else 1e-6
                torch.testing.assert_close(torch.from_numpy(found[parameter]), gradient, rtol=0, atol=tolerance)
