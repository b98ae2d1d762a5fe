"""Layouts that plugins wrote with the earlier names of Parallel's methods work as with the names of today."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recipe_core.hooks.earlier import PARALLEL
from recipe_core.hooks.train import Train
from recipe_core.layouts import parallel
from recipe_core.layouts.parallel import Parallel, Run
from recipe_core.layouts.pipeline.pipeline import Pipeline
from recipe_core.layouts.sharded import Sharded

calls: list[str] = []


class Earlier(Parallel):
    """A layout as it was written before the methods were renamed."""

    def follow(self, optimizer: Any) -> None:
        calls.append("Earlier.follow")
        super().follow(optimizer)

    def settle(self) -> None:
        calls.append("Earlier.settle")

    def with_others(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**super().with_others(state), "others": 1}

    def own(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in super().own(state).items() if name != "others"}

    def give_up(self) -> None:
        calls.append("Earlier.give_up")
        super().give_up()


class Later(Earlier):
    """A layout of today on top of an earlier one."""

    def attach_optimizer(self, optimizer: Any) -> None:
        calls.append("Later.attach_optimizer")
        super().attach_optimizer(optimizer)


class Mixin:
    def follow(self, optimizer: Any) -> None:
        calls.append("Mixin.follow")
        super().follow(optimizer)  # type: ignore[misc]


class Mixed(Mixin, Earlier):
    pass


class Both(Parallel):
    """A layout for cores of both names."""

    def attach_optimizer(self, optimizer: Any) -> None:
        calls.append("Both.attach_optimizer")

    def follow(self, optimizer: Any) -> None:
        calls.append("Both.follow")
        self.attach_optimizer(optimizer)


@pytest.fixture(autouse=True)
def forgotten() -> None:
    calls.clear()


def of(kind: type[Parallel]) -> tuple[Parallel, torch.optim.Optimizer]:
    model = kind(nn.Linear(2, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_core_reaches_overrides_of_earlier_names() -> None:
    model, optimizer = of(Earlier)
    model.attach_optimizer(optimizer)
    model.on_state_loaded()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.discard_step()
    assert calls == ["Earlier.follow", "Earlier.settle", "Earlier.give_up"]
    assert [parameter.grad for parameter in model.parameters()] == [None, None]
    assert model.with_placeholders({"a": 0}) == {"a": 0, "others": 1}
    assert model.local_state({"a": 0, "others": 1}) == {"a": 0}


@pytest.mark.parametrize("name", ["follow", "attach_optimizer"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Parallel, []),
        (Earlier, ["Earlier.follow"]),
        (Later, ["Later.attach_optimizer", "Earlier.follow"]),
        (Mixed, ["Mixin.follow", "Earlier.follow"]),
    ],
)
def test_each_override_runs_once_under_either_name(name: str, kind: type[Parallel], expected: list[str]) -> None:
    model, optimizer = of(kind)
    getattr(model, name)(optimizer)
    assert calls == expected


def test_a_class_that_defines_both_names_keeps_them() -> None:
    model, optimizer = of(Both)
    model.attach_optimizer(optimizer)
    model.follow(optimizer)
    assert calls == ["Both.attach_optimizer", "Both.follow", "Both.attach_optimizer"]


@pytest.mark.parametrize("kind", [Parallel, Sharded, Pipeline])
def test_layouts_of_the_core_have_the_earlier_names(kind: type[Parallel]) -> None:
    for earlier, name in PARALLEL.items():
        assert getattr(kind, earlier) is getattr(kind, name)


def test_earlier_names_of_the_module() -> None:
    assert parallel.StepGivenUp is parallel.StepDiscarded


def run_of(**more: Any) -> Run:
    return Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=4,
        train=Train(), cache=Path(), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "ranks"), [({}, 1), ({"local_dp_ranks": 4}, 4), ({"together": 4}, 4), ({"local_dp_ranks": 1}, 1)]
)
def test_a_run_has_its_ranks_under_both_names(more: dict[str, int], ranks: int) -> None:
    run = run_of(**more)
    assert (run.local_dp_ranks, run.together) == (ranks, ranks)
    changed = replace(run, local_dp_ranks=2)
    assert (changed.local_dp_ranks, changed.together) == (2, 2)
    assert run == run_of(local_dp_ranks=ranks)
    with pytest.raises(FrozenInstanceError):
        run.together = 3  # type: ignore[misc]
