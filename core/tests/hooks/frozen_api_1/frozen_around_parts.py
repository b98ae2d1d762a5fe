"""The code behind frozen_around.py. Never edit this file: later cores must run it as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from frozen_around import Desk, Gain, Mean, Odd, Quiet, Swapped
from torch import Tensor, nn

from recipe_core import (
    Batch,
    Callback,
    CallbackRun,
    ConfigError,
    Lazy,
    NativeEngine,
    Parallel,
    Run,
    SampleGenerators,
    Samples,
    Structure,
    Train,
    Trainable,
    WrapperRun,
)


class DeskEngine(NativeEngine):
    def __init__(self, config: Desk, train: Train) -> None:
        super().__init__("cpu", train.timeout)
        self.label, self.steps, self.entered = config.label, 0, False

    def __enter__(self) -> DeskEngine:
        super().__enter__()
        self.entered = True
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.entered = False
        super().__exit__(kind, error, trace)

    def end_step(self) -> None:
        super().end_step()
        self.steps += 1

    def load_target(self, tensor: Tensor) -> Tensor:
        return super().load_target(tensor)

    def to_host(self, tensors: Sequence[Tensor]) -> list[Any]:
        return super().to_host(tensors)

    def counters(self) -> dict[str, float]:
        return {**super().counters(), "desk_label": float(self.label), "desk_on": float(self.entered)}


def desk(config: Desk, train: Train, layout: Any) -> DeskEngine:
    return DeskEngine(config, train)


class Replicas(Parallel):
    def __init__(self, module: nn.Module, run: Run) -> None:
        super().__init__(module)
        self.run = run

    def complete_gradients(self) -> None:
        super().complete_gradients()
        assert self.run.engine is not None
        if self.run.mesh is not None and self.run.dp_size > 1:
            self.run.engine.average_gradients(self.parameters(), self.run.mesh["dp"].get_group())


def replicas(module: nn.Module, config: Any, run: Run) -> Parallel:
    return Replicas(module.to(run.device), run)


def descent(config: Any, trainable: Trainable) -> torch.optim.Optimizer:
    return torch.optim.SGD(trainable.groups(), lr=1.0, momentum=0.5)


class MeanWeights(Callback):
    def __init__(self, config: Mean, run: CallbackRun) -> None:
        self.config, self.run, self.count, self.calls = config, run, 0, list[str]()
        self.weights = dict(run.model.named_parameters())
        self.mean = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}

    def on_start(self, step: int) -> None:
        if step == 0 and self.count:
            raise ConfigError("a run that begins has no mean yet")

    def before_step(self, step: int) -> None:
        self.calls = ["before_step"]

    def before_optimizer(self, step: int) -> None:
        self.calls.append("before_optimizer")

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        self.calls.append("after_step")
        self.count += 1
        for name, mean in self.mean.items():
            mean.lerp_(self.weights[name], 1 / self.count)
        if self.config.until and step >= self.config.until:
            self.run.stop("enough")

    def metrics(self, step: int) -> Mapping[str, float]:
        return {"mean_of": float(self.count), "moments": float(len(self.calls))}

    def evaluations(self) -> Mapping[str, Any]:
        return {"mean": self._swapped()} if self.count else {}

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        kept = {name: weight.detach().clone() for name, weight in self.weights.items()}
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(self.mean[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.copy_(kept[name])

    def on_end(self, step: int) -> None:
        counts = self.run.engine.gather(self.count)
        (self.run.folder / "mean.txt").write_text(f"{step} {counts}", encoding="utf-8")

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean, "count": self.count}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]
        for name, mean in self.mean.items():
            mean.copy_(state["mean"][name])


class Notes(Callback):
    def __init__(self, config: Quiet, run: CallbackRun) -> None:
        self.path = run.folder / config.file

    def after_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{step} {sorted(values)}\n")

    def before_save(self, step: int) -> None:
        raise ZeroDivisionError("an error that ends no run")


class GainedLinear(nn.Linear):
    gain: nn.Parameter
    gain_start: float
    role_cuts: Mapping[str, Mapping[str, int]] = {"column": {"gain": 0}, "row": {}}

    def forward(self, x: Tensor) -> Tensor:
        output = self.product(x)
        return output if self.bias is None else output + self.bias

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) * self.gain

    def initial_value(self, name: str, shape: torch.Size) -> Tensor | None:
        return torch.full(shape, self.gain_start, device="cpu") if name.endswith(".gain") else None


def gained(config: Gain, module: nn.Module, structure: Structure) -> tuple[nn.Module, Structure]:
    module.requires_grad_(False)
    prefix = structure.blocks.partition("*")[0]
    for name, layer in module.named_modules():
        if name.startswith(prefix) and isinstance(layer, nn.Linear):
            layer.__class__ = GainedLinear
            layer.gain_start = config.start  # type: ignore[assignment]
            layer.gain = nn.Parameter(torch.full_like(layer.weight[:, 0], config.start))
    return module, structure


def merge(config: Gain, weights: Mapping[str, Lazy]) -> dict[str, Lazy]:
    merged = {name: tensor for name, tensor in weights.items() if not name.endswith(".gain")}
    for name in weights.keys() - merged.keys():
        weight = name.removesuffix("gain") + "weight"
        merged[weight] = _product(weights[weight], weights[name])
    return merged


def _product(weight: Lazy, gain: Lazy) -> Lazy:
    def read() -> Tensor:
        return (weight.read().float() * gain.read().float()[:, None]).to(weight.dtype)

    return Lazy(weight.shape, weight.dtype, read)


def odd(config: Odd, samples: Samples, run: WrapperRun) -> Samples:
    def keep(batch: Batch) -> Tensor:
        return batch["ids"][:, 0] % 2 == config.rest

    return run.filtered(samples, keep)


def swapped(config: Swapped, samples: Samples, run: WrapperRun) -> Samples:
    def change(batch: Batch, generators: SampleGenerators) -> Batch:
        ids = batch["ids"]
        chosen = generators.rand(ids.shape[1]) < config.share
        others = generators.randint(12, ids.shape[1])
        return {**batch, "ids": torch.where(chosen, others, ids), "swapped": chosen}

    return run.mapped(samples, change)
