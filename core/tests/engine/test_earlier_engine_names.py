"""Engines that plugins wrote with the earlier names of the protocol's methods, and calls by these names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from recipe_core import EngineSpec, Train
from recipe_core.engine.native import NativeEngine
from recipe_core.engine.protocol import Engine, start
from recipe_core.hooks.earlier import ENGINE
from recipe_core.hooks.specs import Part

CPU = Train(device="cpu")


class Alone:
    """An engine that has nothing of the core's."""

    rank, world_size, group = 0, 1, None

    def fillable(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def stacked(self, values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values))

    def total(self, counts: Sequence[Tensor]) -> Tensor:
        return self.stacked(counts).sum()

    def side(self) -> Alone:
        return self

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Doubling(NativeEngine):
    """PyTorch's own engine, with overrides by earlier names."""

    def total(self, counts: Sequence[Tensor]) -> Tensor:
        return 2 * super().total(counts)


class Further(Doubling):
    def sum_counts(self, counts: Sequence[Tensor]) -> Tensor:
        return 1 + super().sum_counts(counts)


def alone(config: object, train: Train, layout: object) -> Alone:
    return Alone()


@contextmanager
def entered(config: object, train: Train, layout: object) -> Iterator[Alone]:
    """Another object than the manager."""
    yield Alone()


def doubling(config: object, train: Train, layout: object) -> Doubling:
    return Doubling("cpu", train.timeout)


def further(config: object, train: Train, layout: object) -> Further:
    return Further("cpu", train.timeout)


def part(build: str) -> Part[EngineSpec]:
    spec = EngineSpec(name="other", build=f"{__name__}:{build}", claims=f"{__name__}:alone")
    return Part(spec, spec.config())


@pytest.mark.parametrize("build", ["alone", "entered"])
def test_an_engine_with_earlier_names_answers_to_those_of_today(build: str) -> None:
    with start(CPU, part(build)) as engine:
        one, two = torch.tensor(1), torch.tensor(2)
        assert engine.load_target(one) is not one
        assert engine.stack_on_host([one, two]).tolist() == [1, 2]
        assert engine.sum_counts([one, two]).item() == 3
        assert engine.host_ranks() is engine


@pytest.mark.parametrize("name", ["total", "sum_counts"])
@pytest.mark.parametrize(("build", "expected"), [("doubling", 6), ("further", 7)])
def test_overrides_run_once_under_either_name(name: str, build: str, expected: int) -> None:
    with start(CPU, part(build)) as engine:
        assert getattr(engine, name)([torch.tensor(1), torch.tensor(2)]).item() == expected


def test_an_error_passes_through_as_it_is() -> None:
    class OddError(Exception):
        pass

    for engine in (None, part("doubling")):
        with pytest.raises(OddError, match=r"^odd$"), start(CPU, engine):
            raise OddError("odd")


def test_calls_by_earlier_names_reach_pytorchs_own_engine() -> None:
    with start(CPU) as engine:
        assert engine.total([torch.tensor(2**40), torch.tensor(1)]).item() == 2**40 + 1
        assert engine.stacked([torch.tensor(1.5)]).tolist() == [1.5]
        assert engine.fillable(torch.ones(1)).tolist() == [1.0]
        assert engine.side().gather("a") == ["a"]


def test_the_protocol_has_both_names() -> None:
    kinds: tuple[Any, ...] = (Engine, NativeEngine)
    for kind in kinds:
        assert all(hasattr(kind, earlier) and hasattr(kind, name) for earlier, name in ENGINE.items())
