"""Cross entropy with a vocabulary-parallel output matrix equals that of the whole matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recipe_core.engine import protocol as engines
from recipe_core.hooks.train import Train
from recipe_core.ops.cross_entropy import losses_and_hits
from recipe_core.testing import spawn

TOKENS, WIDTH, VOCABULARY = 300, 12, 64
TOLERANCES = {"float32": 1e-6, "bfloat16": 2e-2}


def inputs(dtype: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(3)
    hidden = torch.randn(20, 15, WIDTH, generator=make)
    weight, bias = torch.randn(VOCABULARY, WIDTH, generator=make), torch.randn(VOCABULARY, generator=make)
    labels = torch.randint(VOCABULARY, (20, 15), generator=make)
    labels[:10] = (hidden[:10] @ weight.T + bias).argmax(-1)  # else hits would be rare
    floats = [t.to(getattr(torch, dtype)).requires_grad_() for t in (hidden, weight, bias)]
    return floats[0], floats[1], floats[2], labels


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def computed(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> list[Tensor]:
    """Losses, hits, and the gradients of a weighted mean."""
    losses, hits = losses_and_hits(hidden, weight, labels, bias)
    scales = torch.linspace(0, 1, labels.numel()).view(labels.shape)
    gradients = torch.autograd.grad((losses * scales).mean(), [hidden, weight, bias])
    return [losses.detach(), hits, *gradients]


def divided() -> dict[str, list[Any]]:
    with engines.start(Train(device="cpu")) as engine:
        mesh = engine.mesh({"tp": engine.world_size})
        assert mesh is not None
        return {dtype: _divided(dtype, mesh) for dtype in TOLERANCES}


def _divided(dtype: str, mesh: DeviceMesh) -> list[Any]:
    hidden, weight, bias, labels = inputs(dtype)
    own = [
        torch.nn.Parameter(distribute_tensor(t.detach(), mesh, [Shard(0)], src_data_rank=None)) for t in (weight, bias)
    ]
    with Largest() as largest:
        found = computed(hidden, own[0], own[1], labels)
    whole = [t.full_tensor() if isinstance(t, DTensor) else t for t in found]
    return [largest.elements, *(t.float().numpy() for t in whole)]


def test_losses_hits_and_gradients() -> None:
    wanted = {dtype: [t.float() for t in computed(*inputs(dtype))] for dtype in TOLERANCES}
    for rank in spawn(divided, 4):
        for dtype, tolerance in TOLERANCES.items():
            largest, *found = rank[dtype]
            assert largest <= TOKENS * VOCABULARY // 4
            assert torch.from_numpy(found[1]).equal(wanted[dtype][1])
            for value, expected in zip(found, wanted[dtype], strict=True):
                torch.testing.assert_close(torch.from_numpy(value), expected, rtol=tolerance, atol=tolerance)
