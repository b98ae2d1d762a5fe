"""A plugin whose callbacks have a mistake each, or do not fit the toy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from recipe_core import Callback, CallbackRun, CallbackSpec, NoSettings, Train, hookimpl


class Own(Callback):
    """Clips the values of its own shard by their largest, which differs between shards."""

    def __init__(self, config: NoSettings, run: CallbackRun) -> None:
        self.run = run

    def before_optimizer(self, step: int) -> None:
        for _, weight in self.run.model.named_parameters():
            if weight.grad is not None:
                shard = getattr(weight.grad, "_local_tensor", weight.grad)
                if shard.numel():
                    shard.clamp_(max=float(shard.max()) / 2)


class Forgetful(Callback):
    """Scales the weights by a number that grows with the evaluations, and does not continue from its state."""

    def __init__(self, config: NoSettings, run: CallbackRun) -> None:
        self.run, self.evaluations_seen = run, 0

    def after_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        self.evaluations_seen += 1

    def after_step(self, step: int) -> None:
        with torch.no_grad():
            for _, weight in self.run.model.named_parameters():
                weight.mul_(1 + self.evaluations_seen / 1000)

    def state(self) -> dict[str, Any]:
        return {"evaluations": self.evaluations_seen}


def needs_bf16(config: NoSettings, train: Train) -> Iterator[str]:
    if train.precision != "bf16":
        yield "it needs train.precision=bf16"


@hookimpl
def register_callbacks() -> Iterable[CallbackSpec]:
    """All of them."""
    here = __name__
    yield CallbackSpec(name="own", build=f"{here}:Own", summary="gradients clipped by shard")
    yield CallbackSpec(name="forgetful", build=f"{here}:Forgetful", saves=True, summary="a state that is lost")
    yield CallbackSpec(name="picky", build=f"{here}:Own", problems=f"{here}:needs_bf16", summary="only with bf16")
