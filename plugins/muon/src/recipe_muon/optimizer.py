"""Muon under any layout: whole matrices are gathered, and each process updates its shard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from recipe_core import ConfigError, Trainable
from recipe_core.layouts.reduction.reducer import local_shard
from recipe_core.train.optim.adamw import AdamW, ParamGroup
from recipe_core.train.optim.batch import ParameterBatch
from recipe_core.train.optim.shards import local_gradient, positions
from recipe_core.train.optim.upcast import Upcaster
from recipe_muon.settings import MuonSettings

_COMPUTE = {"bf16": torch.bfloat16, "fp32": torch.float32}


def build(config: MuonSettings, trainable: Trainable) -> Muon:
    """Build Muon over the parameters of ``trainable``.

    Raises:
        ConfigError: the layout keeps shards that Muon cannot gather, or there is no matrix for Muon.
    """
    if trainable.traced or trainable.shard_groups:
        raise ConfigError(
            "optimizer: muon gathers whole matrices step by step, which PyTorch/XLA's layouts do not offer; take "
            "engine=native, or optimizer=adamw"
        )
    matrices = muon_matrices(config, trainable)
    if not matrices:
        patterns = ", ".join(config.matrices) or trainable.structure.blocks or "no blocks"
        raise ConfigError(
            f"optimizer.matrices: no matrix among the parameters matches ({patterns}); Muon would train nothing. Name "
            "matrices of the model, or take optimizer=adamw"
        )
    return Muon(config, trainable, matrices)


def muon_matrices(config: MuonSettings, trainable: Trainable) -> list[nn.Parameter]:
    """The parameters that Muon trains: matrices of the blocks, or those that the settings name."""
    blocks = trainable.structure.blocks.split(".") if trainable.structure.blocks else None

    def matches(name: str) -> bool:
        if config.matrices:
            return any(fnmatchcase(name, pattern) for pattern in config.matrices)
        parts = name.split(".")
        return blocks is not None and len(parts) > len(blocks) and all(map(fnmatchcase, parts, blocks))

    return [parameter for name, parameter in trainable.named if parameter.ndim == 2 and matches(name)]


class Muon(AdamW):
    """Muon (Jordan and others, 2024), and AdamW for all other parameters.

    The state of a matrix is ``momentum_buffer``, with the parameter's placements. The step of a matrix W with gradient
    G is that of ``torch.optim.Muon``, with O the orthogonalised momentum and s the scale of its shape::

        momentum = mean of gradients;  W = W - lr * weight_decay * W - lr * s * O

    O depends on the whole matrix: the ranks with shards of it gather it, and all compute the same.

    Args:
        config: Muon's settings.
        trainable: all parameters.
        matrices: the parameters that Muon trains.
    """

    def __init__(self, config: MuonSettings, trainable: Trainable, matrices: Iterable[nn.Parameter]) -> None:
        matrices = list(matrices)
        self._config, self._matrices = config, set(matrices)
        self._positions: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        adamw_groups = trainable.groups((name, p) for name, p in trainable.named if p not in self._matrices)
        muon_group = {"params": matrices, "weight_decay": trainable.train.weight_decay}
        super().__init__([muon_group, *adamw_groups], trainable.train, trainable.names)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have gradients; ``closure`` computes these first and returns the loss."""
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:  # in the same order on all ranks
                if parameter in self._matrices and parameter.grad is not None:
                    self._update_matrix(parameter, group)
        return loss

    def _update_matrix(self, parameter: nn.Parameter, group: ParamGroup) -> None:
        config, lr = self._config, group["lr"]
        weight, gradient = local_shard(parameter), local_gradient(parameter)
        momentum = local_shard(self._state(parameter)["momentum_buffer"])
        momentum.lerp_(gradient, 1 - config.momentum)
        update = gradient.lerp(momentum, config.momentum) if config.nesterov else momentum
        whole = orthogonalised(_gathered(parameter, update), config)
        weight.mul_(1 - lr * group["weight_decay"])
        weight.add_(self._local_shard(parameter, whole), alpha=-lr * scale(parameter.shape, config.adjust))

    def _local_shard(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        if not isinstance(parameter, DTensor):
            return whole
        if parameter not in self._positions:
            rows, columns = positions(parameter)
            self._positions[parameter] = rows.to(whole.device), columns.to(whole.device)
        rows, columns = self._positions[parameter]
        return whole.index_select(0, rows).index_select(1, columns)

    def _update(self, batch: ParameterBatch, group: ParamGroup, upcaster: Upcaster) -> None:
        super()._update(batch, {**group, "lr": group["lr"] * self._config.adamw_lr_ratio}, upcaster)

    def _batches(self, parameters: list[nn.Parameter]) -> list[ParameterBatch]:
        # only those that AdamW updates
        return super()._batches([parameter for parameter in parameters if parameter not in self._matrices])

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if parameter not in self._matrices:
            return super()._state(parameter)
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(
                parameter, memory_format=torch.contiguous_format, requires_grad=False
            )
        return state


def orthogonalised(matrix: Tensor, config: MuonSettings) -> Tensor:
    """An approximation of U V^T, where ``matrix`` is U S V^T, by Newton-Schulz iterations; not in place.

    The singular values of the result are about 0.7 to 1.2 (Jordan and others, 2024).

    Args:
        matrix: ``[rows, columns]``.
        config: the number of iterations, their coefficients and precision.
    """
    a, b, c = config.coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(_COMPUTE[config.compute])
    x = x.T if tall else x  # so that the products have the smaller side
    x = x / x.norm().clamp(min=config.min_norm)
    for _ in range(config.iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def scale(shape: torch.Size, adjust: str) -> float:
    """Factor of the learning rate for a matrix of ``shape``, as in ``torch.optim.Muon``."""
    rows, columns = shape
    return 0.2 * math.sqrt(max(rows, columns)) if adjust == "match_rms_adamw" else math.sqrt(max(1.0, rows / columns))


def _gathered(parameter: nn.Parameter, local: Tensor) -> Tensor:
    """The whole tensor with the placements of ``parameter`` and this process's shard ``local``; a collective."""
    if not isinstance(parameter, DTensor):
        return local
    placed = DTensor.from_local(
        local.contiguous(), parameter.device_mesh, parameter.placements,
        run_check=False, shape=parameter.shape, stride=parameter.stride(),
    )  # fmt: skip
    whole: Tensor = placed.full_tensor()
    return whole
