"""AdamW, and the base class of these optimizers: states, dtypes of weights and states, sharded parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.hooks.train import Train
from recipe_core.layouts.reduction.reducer import local_shard
from recipe_core.train.optim.adam import adam_, has_fused_adamw
from recipe_core.train.optim.batch import ParameterBatch
from recipe_core.train.optim.rounding import Rounding
from recipe_core.train.optim.shards import ShardGroups, shard_groups
from recipe_core.train.optim.slices import chunks
from recipe_core.train.optim.upcast import FIRSTS, SECONDS, Upcaster, compute_dtype

ParamGroup = dict[str, Any]


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019).

    States of a parameter: ``step`` (on the host, no device synchronisation), ``exp_avg`` and ``exp_avg_sq``
    (placed as the parameter is), and ``master`` where ``train.optimizer_states`` asks for it.

    Args:
        groups: parameters with their weight decay.
        train: learning rate, dtypes of the states, and the seed.
        names: of all parameters; they seed stochastic rounding.
        sharded: for parameters that are plain tensors but shards, the process groups with the other shards.
    """

    _adam = staticmethod(adam_)
    """The update of lists of tensors, for engines that need another."""

    def __init__(
        self, groups: list[ParamGroup], train: Train, names: Mapping[nn.Parameter, str],
        sharded: Mapping[nn.Parameter, ShardGroups] | None = None,
    ) -> None:  # fmt: skip
        settings = {"lr": train.lr, "betas": train.betas, "eps": train.eps, "weight_decay": train.weight_decay}
        super().__init__(groups, settings)
        self._state_dtypes, self._trust_clip, self._sharded = train.optimizer_states, train.trust_clip, sharded or {}
        self._rounding = Rounding(train.seed, names) if train.stochastic_rounding else None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have gradients; ``closure`` computes these first and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        upcaster = Upcaster(self._rounding)
        for group in self.param_groups:
            for batch in self._batches(group["params"]):
                self._update(batch, group, upcaster)
                batch.finish()
        return loss

    def _update(self, batch: ParameterBatch, group: ParamGroup, upcaster: Upcaster) -> None:
        settings = {"lr": group["lr"], "betas": group["betas"], "eps": group["eps"], "decay": group["weight_decay"]}
        if batch.in_place:
            adam_(batch.weights, batch.gradients, batch.firsts, batch.seconds, batch.step, **settings)
            return
        dtype = compute_dtype(batch.weights[0].dtype)
        for chunk in chunks(batch.weights):
            weights = upcaster.upcast("weights", batch.updated, chunk, dtype)
            gradients = upcaster.upcast("gradients", batch.gradients, chunk, dtype)
            firsts = upcaster.upcast("firsts", batch.firsts, chunk, dtype)
            seconds = upcaster.upcast("seconds", batch.seconds, chunk, dtype)
            self._adam(weights.values, gradients.values, firsts.values, seconds.values, batch.step, **settings)
            upcaster.store_weights(weights, batch, chunk)
            upcaster.store(firsts, batch, chunk, FIRSTS)
            upcaster.store(seconds, batch, chunk, SECONDS)

    def _batches(self, parameters: list[nn.Parameter]) -> list[ParameterBatch]:
        """Batches of the parameters that have gradients, with ``step`` advanced; in the same order on all ranks."""
        trained = [(p, p.grad.dtype, self._state(p)) for p in parameters if p.grad is not None]
        if trained:
            torch._foreach_add_([state["step"] for _, _, state in trained], 1)
        batches: dict[tuple[Any, ...], ParameterBatch] = {}
        for p, dtype, state in trained:
            step, shard = int(state["step"].item()), local_shard(p) if is_dtensor(p) else p
            sharded_over = shard_groups(p) if is_dtensor(p) else self._sharded.get(p, ())
            widths = shard.dtype, dtype, state["exp_avg"].dtype
            key = (shard.device, *widths, "master" in state, step, sharded_over)
            if key not in batches:
                batches[key] = ParameterBatch(step, sharded_over, self._in_place(shard, widths, state))
            batches[key].add(p, state)
        return list(batches.values())

    def _in_place(self, shard: Tensor, widths: tuple[torch.dtype, ...], state: Mapping[str, Tensor]) -> bool:
        """True if one fused call can update such parameters; else the update runs in chunks, perhaps on copies."""
        possible = len(set(widths)) == 1 and "master" not in state and not self._rounding
        return possible and has_fused_adamw(shard.device, shard.dtype)

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            computing = compute_dtype(parameter.dtype)
            dtype = parameter.dtype if self._state_dtypes == "weights" else computing
            state["step"] = torch.zeros(())
            state["exp_avg"] = _zeros(parameter, dtype)
            state["exp_avg_sq"] = _zeros(parameter, dtype)
            if self._state_dtypes == "master" and parameter.dtype != computing:
                state["master"] = _zeros(parameter, computing)
                local_shard(state["master"]).copy_(local_shard(parameter))
        return state

    def make_states(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Create the states that ``parameters`` lack, as a first step would; False where only a step can."""
        for parameter in parameters:
            self._state(parameter)
        return True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of ``state_dict()``, each state cast to its dtype here.

        torch's own method would cast the states to the dtype of the weights.
        """
        super().load_state_dict({**state_dict, "state": {}})
        names = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for name, parameter in zip(names, parameters, strict=True):
            for key, value in state_dict["state"].get(name, {}).items():
                current = self._state(parameter)[key]
                self.state[parameter][key] = value.to(device=current.device, dtype=current.dtype)


def _zeros(parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(parameter, dtype=dtype, memory_format=torch.contiguous_format, requires_grad=False)
