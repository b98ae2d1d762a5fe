"""A small stand-in for the parts of neuronx-distributed 0.18 that the core uses.

Names, arguments, defaults and habits are those of ``neuronx_distributed.parallel_layers``, as release 2.29 of AWS's SDK
shows them in its CPU mode: layers take three dimensions, exchanges and the cross entropy work in place, a padding of 0
counts as none, sizes must divide, four ranks of a group stand apart as on a trn1. A gradient that is not of
``reduce_dtype`` (by default fp32) keeps the value that it had before the ranks summed it. Where the package would
silently compute nonsense (a label beyond the vocabulary, a second start), this stops. Tensors on an XLA device go
through the host.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

_ROOT = "neuronx_distributed"
_held: dict[str, Any] = {}
"""The groups of this rank: ``tp`` and ``dp``, and by ``host`` their substitutes where the device has none."""


def install() -> None:
    """Register it in this process as neuronx-distributed."""
    modules: dict[str, list[Any]] = {
        "parallel_state": [
            initialize_model_parallel, model_parallel_is_initialized, destroy_model_parallel,
            get_tensor_model_parallel_rank, get_tensor_model_parallel_size, get_tensor_model_parallel_group,
            get_data_parallel_rank, get_data_parallel_size, get_data_parallel_group,
        ],
        "layers": [ColumnParallelLinear, RowParallelLinear, ParallelEmbedding],
        "mappings": [copy_to_tensor_model_parallel_region, gather_from_tensor_model_parallel_region],
        "loss_functions": [parallel_cross_entropy],
        "grads": [get_grad_norm],
    }  # fmt: skip
    parent = ModuleType(f"{_ROOT}.parallel_layers")
    sys.modules.update({_ROOT: ModuleType(_ROOT), parent.__name__: parent})
    for name, contents in modules.items():
        module = ModuleType(f"{parent.__name__}.{name}")
        for content in contents:
            setattr(module, content.__name__, content)
        sys.modules[module.__name__] = module


def tp_groups(world: int, tp: int) -> list[list[int]]:
    """Which ranks share layers, on a trn1."""
    if tp == 4:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        apart = local // tp
        firsts = (node + first for node in range(0, world, local) for first in range(apart))
        return [list(range(first, first + tp * apart, apart)) for first in firsts]
    return [list(range(first, first + tp)) for first in range(0, world, tp)]


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1, pipeline_model_parallel_size: int = 1, *, lnc_size: int = 1
) -> None:  # fmt: skip
    assert not _held, "initialised twice"
    assert pipeline_model_parallel_size == 1
    tensor_model_parallel_size = min(tensor_model_parallel_size, dist.get_world_size())
    if dist.get_world_size() % tensor_model_parallel_size:
        raise RuntimeError("the world does not divide")
    rows = tp_groups(dist.get_world_size(), tensor_model_parallel_size)
    columns = [list(column) for column in zip(*rows, strict=True)]
    on_xla = dist.get_backend() == "xla"
    for name, every in {"tp": rows, "dp": columns}.items():
        for ranks in every:
            options = {"xla_pg_options": {"mesh": every}} if on_xla else None
            group = dist.new_group(ranks, pg_options=options)
            host = dist.new_group(ranks, backend="gloo") if on_xla else group
            if dist.get_rank() in ranks:
                assert not on_xla or group._mesh == every, "the device's exchanges would be between others"
                _held[name], _held[f"{name} host"] = group, host


def model_parallel_is_initialized() -> bool:
    return bool(_held)


def destroy_model_parallel() -> None:
    _held.clear()


def get_tensor_model_parallel_group() -> Any:
    return _held["tp"]


def get_data_parallel_group() -> Any:
    return _held["dp"]


def get_tensor_model_parallel_rank() -> int:
    return dist.get_rank(_held["tp host"])


def get_tensor_model_parallel_size() -> int:
    return dist.get_world_size(_held["tp host"])


def get_data_parallel_rank() -> int:
    return dist.get_rank(_held["dp host"])


def get_data_parallel_size() -> int:
    return dist.get_world_size(_held["dp host"])


def _reduce(x: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    """Over the tensor-parallel group, in place."""
    if get_tensor_model_parallel_size() == 1:
        return x
    host = x.cpu() if x.device.type == "xla" else x
    dist.all_reduce(host, operation, group=_held["tp host"])
    return x if host is x else x.copy_(host)


def _parts(x: Tensor) -> list[Tensor]:
    host = x.cpu().contiguous()
    parts = [torch.empty_like(host) for _ in range(get_tensor_model_parallel_size())]
    dist.all_gather(parts, host, group=_held["tp host"])
    return [part.to(x.device) for part in parts]


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _reduce(grad)


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _reduce(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.cat(_parts(x), -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.chunk(get_tensor_model_parallel_size(), -1)[get_tensor_model_parallel_rank()].contiguous()


def copy_to_tensor_model_parallel_region(input_: Tensor) -> Any:
    return _Copy.apply(input_)


def gather_from_tensor_model_parallel_region(input_: Tensor) -> Any:
    return _Gather.apply(input_)


class _Linear(torch.autograd.Function):
    """A product whose backward takes contiguous tensors of three dimensions and may sum the input's gradient.

    It sums in place in the type ``summed_in``; of a gradient of another type it sums a copy and drops the result.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, summed_in: torch.dtype | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.summed_in = summed_in
        return x.matmul(weight.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad_x = grad.matmul(weight)
        if ctx.summed_in is not None:
            _reduce(grad_x.to(ctx.summed_in))
        rows, inputs = (t.view(t.shape[0] * t.shape[1], t.shape[2]) for t in (grad, x.contiguous()))
        return grad_x, rows.t().matmul(inputs), None


def _marked(*shape: int, dim: int | None, dtype: torch.dtype) -> nn.Parameter:
    parameter: Any = nn.Parameter(torch.empty(shape, dtype=dtype))
    if dim is not None:
        parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dim, 1
        parameter.num_partitions, parameter.rank_ordering = get_tensor_model_parallel_size(), None
    return parameter  # type: ignore[no-any-return]


def _divided(size: int) -> int:
    assert size % get_tensor_model_parallel_size() == 0, f"{size} does not divide"
    return size // get_tensor_model_parallel_size()


class ColumnParallelLinear(nn.Module):
    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, gather_output: bool = True,
        dtype: torch.dtype = torch.float32, reduce_dtype: torch.dtype | None = torch.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        assert not gather_output
        self.reduce_dtype = dtype if reduce_dtype is None else reduce_dtype
        self.weight = _marked(_divided(output_size), input_size, dim=0, dtype=dtype)
        self.bias = _marked(_divided(output_size), dim=0, dtype=dtype) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = _Linear.apply(input, self.weight, self.reduce_dtype)  # type: ignore[no-untyped-call]
        return output if self.bias is None else output + self.bias


class RowParallelLinear(nn.Module):
    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, input_is_parallel: bool = False,
        dtype: torch.dtype = torch.float32, reduce_dtype: torch.dtype | None = torch.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        assert input_is_parallel
        self.reduce_dtype = dtype if reduce_dtype is None else reduce_dtype
        self.weight = _marked(output_size, _divided(input_size), dim=1, dtype=dtype)
        self.bias = _marked(output_size, dim=None, dtype=dtype) if bias else None
        if self.bias is not None:
            self.bias.sequence_parallel_enabled = False  # type: ignore[attr-defined]

    def forward(self, input_: Tensor) -> Tensor:
        part: Tensor = _Linear.apply(input_, self.weight, None)  # type: ignore[no-untyped-call]
        output: Tensor = _Reduce.apply(part.to(self.reduce_dtype)).to(part.dtype)  # type: ignore[no-untyped-call]
        return output if self.bias is None else output + self.bias


class ParallelEmbedding(nn.Module):
    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        rows = _divided(num_embeddings)
        self.first, self.last = (rows * (get_tensor_model_parallel_rank() + more) for more in (0, 1))
        inside = padding_idx and self.first <= padding_idx < self.last
        self.padding_idx = padding_idx - self.first if padding_idx and inside else None
        self.weight = _marked(rows, embedding_dim, dim=0, dtype=dtype)
        self.given = torch.float32 if dtype == torch.float32 else torch.bfloat16  # it knows no others

    def forward(self, input_: Tensor) -> Tensor:
        own = (input_ >= self.first) & (input_ < self.last)
        found = F.embedding((input_ - self.first) * own, self.weight, self.padding_idx)
        masked = (found * own[..., None].to(self.given)).to(self.given)
        output: Tensor = _Reduce.apply(masked)  # type: ignore[no-untyped-call]
        return output


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        largest = _reduce(logits.max(-1).values, dist.ReduceOp.MAX)
        logits.sub_(largest[..., None])  # the caller's tensor
        rows = logits.shape[-1]
        first = rows * get_tensor_model_parallel_rank()
        own = (target >= first) & (target < first + rows)
        place = ((target - first) * own)[..., None]
        predicted = _reduce(logits.gather(-1, place).squeeze(-1) * own.float())
        exponents = logits.exp()
        total = _reduce(exponents.sum(-1))
        ctx.save_for_backward(exponents.div_(total[..., None]), own, place)
        return total.log() - predicted

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        softmax, own, place = ctx.saved_tensors
        softmax.scatter_add_(-1, place, -own.float()[..., None])  # overwrites the saved tensor
        return softmax.mul_(grad[..., None]), None


def parallel_cross_entropy(vocab_parallel_logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Any:
    assert label_smoothing == 0
    assert bool(((target >= 0) & (target < vocab_parallel_logits.shape[-1] * get_tensor_model_parallel_size())).all())
    return _CrossEntropy.apply(vocab_parallel_logits, target)


def get_grad_norm(parameters: Any) -> Tensor:
    """Use the marks on the parameters: each rank adds its share of the norm of those that are not sharded."""
    total = torch.zeros(1, dtype=parameters[0].dtype)
    for parameter in parameters:
        if parameter.grad is not None:
            share = 1 if getattr(parameter, "tensor_model_parallel", False) else get_tensor_model_parallel_size()
            total += parameter.grad.norm() ** 2 / share
    return _reduce(total).sqrt()
