"""AdamW, and the base of the optimizers here: states, weights and states of any width, sharded parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from recipe_core.hooks.train import Train
from recipe_core.layouts.reducer import local_shard
from recipe_core.train.optim.adam import adam_, fused
from recipe_core.train.optim.batch import ParameterBatch
from recipe_core.train.optim.pieces import chunks
from recipe_core.train.optim.rounding import Rounding
from recipe_core.train.optim.shards import Groups, shard_groups
from recipe_core.train.optim.wide import FIRSTS, SECONDS, Widener, computing

Group = dict[str, Any]


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019).

    States of a parameter: ``step`` (on the host, no device synchronisation), ``exp_avg`` and ``exp_avg_sq``
    (placed as the parameter is), and ``master`` where ``train.optimizer_states`` asks for it.

    Args:
        groups: parameters with their weight decay.
        train: rates, widths and the seed.
        names: of all parameters; stochastic rounding follows from them.
        sharded: of parameters that are shards as plain tensors, the groups of ranks that hold the other shards.
        traced: each step is one and the same graph, and the runtime rounds, see
            :attr:`recipe_core.engine.protocol.Engine.traced`.
    """

    def __init__(
        self, groups: list[Group], train: Train, names: Mapping[nn.Parameter, str],
        sharded: Mapping[nn.Parameter, Groups] | None = None, *, traced: bool = False,
    ) -> None:  # fmt: skip
        settings = {"lr": train.lr, "betas": train.betas, "eps": train.eps, "weight_decay": train.weight_decay}
        super().__init__(groups, settings)
        self._kept, self._clip, self._sharded = train.optimizer_states, train.trust_clip, sharded or {}
        self._traced = traced
        ours = train.stochastic_rounding and not traced  # else the runtime rounds
        self._rounding = Rounding(train.seed, names) if ours else None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have gradients; ``closure`` computes these first and gives the loss back."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        widener = Widener(self._rounding)
        for group in self.param_groups:
            for batch in self._batches(group["params"]):
                self._update(batch, group, widener)
                batch.finish()
        return loss

    def _update(self, batch: ParameterBatch, group: Group, widener: Widener) -> None:
        """One step of the parameters of ``batch``."""
        settings = {"lr": group["lr"], "betas": group["betas"], "eps": group["eps"], "decay": group["weight_decay"]}
        if batch.in_place:
            adam_(batch.weights, batch.gradients, batch.firsts, batch.seconds, batch.step, **settings)
            return
        dtype = computing(batch.weights[0].dtype)
        for chunk in chunks(batch.weights):
            weights = widener.widen("weights", batch.updated, chunk, dtype)
            gradients = widener.widen("gradients", batch.gradients, chunk, dtype)
            firsts = widener.widen("firsts", batch.firsts, chunk, dtype)
            seconds = widener.widen("seconds", batch.seconds, chunk, dtype)
            adam_(
                weights.values, gradients.values, firsts.values, seconds.values, batch.step,
                traced=self._traced, **settings,
            )  # fmt: skip
            widener.store_weights(weights, batch, chunk)
            widener.store(firsts, batch, chunk, FIRSTS)
            widener.store(seconds, batch, chunk, SECONDS)

    def _batches(self, parameters: list[nn.Parameter]) -> list[ParameterBatch]:
        """The parameters that have gradients, one step on. The order is the same on all ranks."""
        trained = [(p, p.grad.dtype, self._state(p)) for p in parameters if p.grad is not None]
        if trained:
            torch._foreach_add_([state["step"] for _, _, state in trained], 1)
        batches: dict[tuple[Any, ...], ParameterBatch] = {}
        for p, dtype, state in trained:
            step, shard = int(state["step"].item()), local_shard(p) if isinstance(p, DTensor) else p
            over = shard_groups(p) if isinstance(p, DTensor) else self._sharded.get(p, ())
            widths = shard.dtype, dtype, state["exp_avg"].dtype
            key = (shard.device, *widths, "master" in state, step, over)
            if key not in batches:
                batches[key] = ParameterBatch(step, over, self._in_place(shard, widths, state))
            batches[key].add(p, state)
        return list(batches.values())

    def _in_place(self, shard: Tensor, widths: tuple[torch.dtype, ...], state: Mapping[str, Tensor]) -> bool:
        """True if one call updates such parameters in place; else the update runs in chunks, perhaps with copies."""
        wanted = len(set(widths)) == 1 and "master" not in state and not self._rounding and not self._traced
        return wanted and fused(shard.device, shard.dtype)

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The states of ``parameter``, made where it has none."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            wide = computing(parameter.dtype)
            dtype = parameter.dtype if self._kept == "weights" else wide
            state["step"] = torch.zeros(())
            state["exp_avg"] = _zeros(parameter, dtype)
            state["exp_avg_sq"] = _zeros(parameter, dtype)
            if self._kept == "master" and parameter.dtype != wide:
                state["master"] = _zeros(parameter, wide)
                local_shard(state["master"]).copy_(local_shard(parameter))
        return state

    def make_states(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Make the states that ``parameters`` lack, as a first step would; True if that is all that there is to do.

        Where each step is a traced graph, only a step can: this one would be another graph.
        """
        if not self._traced:
            for parameter in parameters:
                self._state(parameter)
        return not self._traced

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict()`` gave, each state in the width that it has here.

        torch's own method would make the states as narrow as the weights.
        """
        super().load_state_dict({**state_dict, "state": {}})
        names = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for name, parameter in zip(names, parameters, strict=True):
            for key, value in state_dict["state"].get(name, {}).items():
                mine = self._state(parameter)[key]
                self.state[parameter][key] = value.to(device=mine.device, dtype=mine.dtype)


def _zeros(parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
    """Zeros in the shape and place of ``parameter``, without gaps in memory."""
    return torch.zeros_like(parameter, dtype=dtype, memory_format=torch.contiguous_format, requires_grad=False)
