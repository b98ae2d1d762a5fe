"""neuronx-distributed: tensor-parallel layers on NeuronCores with PyTorch/XLA, one process for each core.

Uses only the published interface: ``parallel_state``, ``layers``, ``mappings`` and ``loss_functions`` of
``neuronx_distributed.parallel_layers``, as of release 0.18 (https://awsdocs-neuron.readthedocs-hosted.com, "Distributed
Strategies APIs"). The package is imported when a run needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import ConfigError
from recipe_core.engine.neuron.stack import logical_core_size
from recipe_xla.machine import NXD_REMEDY
from recipe_xla.mesh import DeviceGrid


def grid(axes: Mapping[str, int], rank: int, timeout: timedelta, *, on_xla: bool = True) -> DeviceGrid:
    """Create neuronx-distributed's groups and return their grid; all ranks call it.

    The package decides which ranks share layers: neighbours, or in groups of four those that a trn1 connects, eight
    apart. The grid follows it.

    Args:
        axes: ``dp`` and ``tp``.
        rank: of this process.
        timeout: of collectives on the host.
        on_xla: create groups for tensors on XLA devices; else for those of the default group.

    Raises:
        ConfigError: the package cannot be imported.
        LaunchError: its ranks form no grid of these sizes.
    """
    state = _module("parallel_state")
    if state.model_parallel_is_initialized():  # by an earlier run of this process, whose groups were destroyed
        state.destroy_model_parallel()
    with _world_on_xla() if on_xla else nullcontext():
        state.initialize_model_parallel(tensor_model_parallel_size=axes["tp"], lnc_size=logical_core_size())
    own = {"dp": state.get_data_parallel_rank(), "tp": state.get_tensor_model_parallel_rank()}
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, tuple(int(own[axis]) for axis in axes))
    return DeviceGrid.of_places(axes, places, rank, timeout)


def tensor_parallel_group() -> Any:
    """The package's tensor-parallel group of this rank."""
    return _module("parallel_state").get_tensor_model_parallel_group()


def mark(parameter: Any, dim: int) -> None:
    """Set the attributes by which the package's functions recognise a shard along ``dim``."""
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dim, 1


def column(dense: nn.Linear) -> nn.Module:
    """Column-parallel ``dense``: each rank holds rows of its matrix; whole input, a part of the output features."""
    with torch.device("meta"):  # _adopt replaces its parameters
        layer = _module("layers").ColumnParallelLinear(
            dense.in_features, dense.out_features, bias=dense.bias is not None, gather_output=False,
            dtype=dense.weight.dtype, reduce_dtype=dense.weight.dtype,
        )  # fmt: skip
    return _linear(layer, dense, _column_forward)


def row(dense: nn.Linear) -> nn.Module:
    """Row-parallel ``dense``: each rank holds columns of its matrix; a part of the input features, whole output."""
    with torch.device("meta"):
        layer = _module("layers").RowParallelLinear(
            dense.in_features, dense.out_features, bias=dense.bias is not None, input_is_parallel=True,
            dtype=dense.weight.dtype, reduce_dtype=torch.float32,  # of the sum over ranks, so that it is rounded once
        )  # fmt: skip
    return _linear(layer, dense, _forward)


def embedding(dense: nn.Embedding, words: int) -> nn.Module:
    """Vocabulary-parallel ``dense``: each rank holds some rows of ``words``, padded to a multiple of the ranks."""
    with torch.device("meta"):
        layer = _module("layers").ParallelEmbedding(words, dense.embedding_dim, dtype=dense.weight.dtype)
    _adopt(layer, dense)
    layer.forward = partial(_embed, layer, layer.forward, dense.padding_idx)
    return layer  # type: ignore[no-any-return]


class VocabularyHead:
    """Logits and losses of an output matrix that is cut by rows; see
    :class:`recipe_core.layouts.tensor_parallel.heads.Head`.

    Args:
        words: size of the vocabulary. The last rank may hold rows beyond it.
    """

    def __init__(self, words: int) -> None:
        self._words = words
        state = _module("parallel_state")
        self._rank, self._size = state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_size()
        self._mappings = _module("mappings")
        self._cross_entropy = _module("loss_functions").parallel_cross_entropy

    def losses_and_hits(
        self, hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, *, with_hits: bool
    ) -> tuple[Tensor, Tensor]:
        """See :class:`recipe_core.layouts.tensor_parallel.heads.Head`."""
        logits = self._own_logits(hidden, weight, bias).float()
        hits = self._likeliest(logits) == labels if with_hits else labels.new_empty(0, dtype=torch.bool)
        # Its cross entropy has no ignored label, and changes the logits in place.
        counted = labels >= 0
        losses: Tensor = self._cross_entropy(logits, labels.masked_fill(~counted, 0))
        return losses.masked_fill(~counted, 0.0), hits

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See :class:`recipe_core.layouts.tensor_parallel.heads.Head`."""
        own = self._own_logits(hidden, weight, bias)
        whole: Tensor = self._mappings.gather_from_tensor_model_parallel_region(own)
        return whole[..., : self._words]

    def _own_logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Rows beyond the vocabulary get the lowest logit.
        logits = F.linear(self._mappings.copy_to_tensor_model_parallel_region(hidden), weight, bias)
        rows = weight.shape[0]
        if rows * self._size == self._words:
            return logits
        held = self._words - self._rank * rows
        beyond = torch.arange(rows, device=logits.device) >= held
        return logits.masked_fill(beyond, torch.finfo(logits.dtype).min)

    @torch.no_grad()
    def _likeliest(self, logits: Tensor) -> Tensor:
        # ``[...]``: the maxima of all ranks are compared.
        value, place = logits.max(-1)
        best = torch.stack([value, (place + self._rank * logits.shape[-1]).float()], -1)  # exact below 2**24
        every = self._mappings.gather_from_tensor_model_parallel_region(best).unflatten(-1, (self._size, 2))
        winner = every[..., 0].argmax(-1, keepdim=True)
        likeliest: Tensor = every[..., 1].gather(-1, winner).squeeze(-1).long()
        return likeliest


def _module(name: str) -> Any:
    try:
        return import_module(f"neuronx_distributed.parallel_layers.{name}")
    except ImportError as error:
        raise ConfigError(
            f"layout.tp: neuronx-distributed, which divides layers on Neuron over PyTorch/XLA, cannot be imported "
            f"({error}); {NXD_REMEDY}"
        ) from error


@contextmanager
def _world_on_xla() -> Iterator[None]:
    # The package derives its groups from the default group. Outside of the block that stays gloo, for the host.
    from torch.distributed.distributed_c10d import _get_default_group, _update_default_pg
    from torch_xla.distributed import xla_backend  # noqa: F401  # makes the backend known

    host = _get_default_group()
    _update_default_pg(dist.new_group(backend="xla"))
    try:
        yield
    finally:
        _update_default_pg(host)


def _linear(layer: nn.Module, dense: nn.Linear, forward: Callable[..., Tensor]) -> nn.Module:
    _adopt(layer, dense)
    layer.forward = partial(forward, layer, layer.forward)
    return layer


def _adopt(layer: nn.Module, dense: nn.Module) -> None:
    # Gives ``layer`` the sharded parameters of ``dense``; they stay the same objects, so that they stay tied.
    for name, parameter in dense.named_parameters(recurse=False):
        made = getattr(layer, name)
        if made.shape != parameter.shape:
            raise ConfigError(
                f"layout.tp: neuronx-distributed divides a {type(dense).__name__} into {name}s of "
                f"{list(made.shape)}, and the tensor plan into {list(parameter.shape)}; please report it"
            )
        vars(parameter).update(vars(made))  # the package's marks
        setattr(layer, name, parameter)


def _column_forward(layer: Any, forward: Any, x: Tensor) -> Tensor:
    # In any other ``reduce_dtype`` the package's backward all-reduces a copy and returns the gradient without the sum.
    layer.reduce_dtype = _computing_dtype(layer, x)
    return _forward(layer, forward, x)


def _computing_dtype(layer: nn.Module, x: Tensor) -> torch.dtype:
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    dtype = layer.weight.dtype
    assert isinstance(dtype, torch.dtype)
    return dtype


def _forward(layer: nn.Module, forward: Any, x: Tensor) -> Tensor:
    # The package's layers take three dimensions and know only CUDA's autocast.
    device, dtype = x.device.type, _computing_dtype(layer, x)
    batched = x.to(dtype) if x.ndim == 3 else x.to(dtype).reshape(1, -1, x.shape[-1])
    with torch.autocast(device, enabled=False), _parameters_as(layer, dtype):
        output: Tensor = forward(batched)
    if output.requires_grad:
        output.register_hook(Tensor.contiguous)  # its backward takes views of the gradient
    return output.reshape(*x.shape[:-1], output.shape[-1])


@contextmanager
def _parameters_as(layer: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    held = dict(layer._parameters)
    layer._parameters.update(
        {name: p if p is None or p.dtype == dtype else p.to(dtype) for name, p in held.items()}  # type: ignore[misc]
    )
    try:
        yield
    finally:
        layer._parameters.update(held)


def _embed(layer: nn.Module, forward: Any, padding: int | None, ids: Tensor) -> Tensor:
    # The package treats id 0 as padding.
    output: Tensor = forward(ids).to(layer.weight.dtype)
    if padding is None:
        return output
    return torch.where((ids == padding)[..., None], output.detach(), output)  # no gradient for the padding's row
