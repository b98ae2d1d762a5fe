"""An engine of a plugin: what the core asks of it, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recipe_core import EngineSpec, hookimpl
from recipe_core.cli.doctor.plugins import engine_findings
from recipe_core.cli.precompile import dry_run_arguments, precompile
from recipe_core.engine.loader import DeviceLoader, PlainLoader, Request
from recipe_core.engine.machine.environment import Variable, variables
from recipe_core.engine.native import NativeEngine
from recipe_core.engine.select import one_process
from recipe_core.errors import ConfigError
from recipe_core.hooks.finding import Finding
from recipe_core.hooks.specs import Part
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Batch, Parallel, Run
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import toy
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.optim.build import Trainable, adamw
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

said: list[str] = []
"""The core's questions, in order."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    level: int = 1


class InOrder(list[Batch]):
    """Micro batches that are taken in order, as a loader may give them."""

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("these micro batches are taken in order")


class OnePass(PlainLoader):
    def step(self, consumed: int, *, last: bool = False) -> InOrder:
        return InOrder(super().step(consumed, last=last))


class Hosted(NativeEngine):
    """The CPU under another name."""

    traced = True

    def device_loader(self, request: Request, train: Train) -> DeviceLoader:
        return OnePass(self.device, request, train)

    def to_host(self, tensors: Any) -> list[Any]:
        said.append("to_host")
        return super().to_host(tensors)

    def end_step(self) -> None:
        said.append("end_step")


def build(config: Settings, train: Train, layout: Part | None) -> NativeEngine:
    assert layout is not None
    said.append(f"build level={config.level} {layout.spec.name}")
    return Hosted("cpu", train.timeout)


def claims(device: str) -> bool:
    return device == "mine"


def problems(config: Settings, train: Train, layout: Part | None, processes: int | None) -> Iterator[str]:
    if train.compile:
        yield "train.compile: hosted compiles nothing"
    if processes == 3:
        yield "--processes: hosted takes 1 or 2"


def environment(job: Job, processes: int, several_machines: bool) -> Iterator[Variable]:
    yield Variable("HOSTED", str(processes), "its own")


def single(module: nn.Module, config: object, run: Run) -> Parallel:
    assert isinstance(run.engine, Hosted)
    said.append("single")
    return Parallel(module)


def numbers_as_data(config: object, trainable: Trainable) -> torch.optim.Optimizer:
    assert trainable.traced
    said.append("adamw")
    return adamw(config, trainable)


def whole(layout: Part) -> bool:
    return True


def by_tool(job: Job, words: object, out: Path | None, processes: int) -> int:
    return 5


def findings(environment: object) -> Iterator[Finding]:
    yield Finding("any", "warning", "no device", "buy one")


class Plugin:
    @staticmethod
    @hookimpl
    def register_engines() -> Iterable[EngineSpec]:
        here = __name__
        yield EngineSpec(
            name="hosted", build=f"{here}:build", config=Settings, claims=f"{here}:claims",
            problems=f"{here}:problems", environment=f"{here}:environment", layouts={"single": f"{here}:single"},
            optimizers={"adamw": f"{here}:numbers_as_data"}, one_process=f"{here}:whole", precompile=f"{here}:by_tool",
            findings=f"{here}:findings",
        )  # fmt: skip


class Rival:
    @staticmethod
    @hookimpl
    def register_engines() -> Iterable[EngineSpec]:
        yield EngineSpec(name="rival", build=f"{__name__}:build", claims=f"{__name__}:claims")


def job_of(*words: str) -> Job:
    return checked_job(toy.registry(Plugin), "toy", words, 1)


@pytest.fixture(autouse=True)
def quiet() -> None:
    said.clear()


def test_a_run_goes_through_the_engine(tmp_path: Path) -> None:
    line = ("layout=single", "model.dropout=0", "train.steps=2", "train.eval_every=0")
    run(job_of(*line, "engine=hosted", "engine.level=3"), tmp_path / "hosted")
    assert said == ["build level=3 single", "single", "adamw", "end_step", "end_step", "to_host"]
    run(job_of(*line, "train.device=cpu"), tmp_path / "native")
    losses = [[row["loss"] for row in read_rows(tmp_path / name / METRICS)] for name in ("hosted", "native")]
    assert losses[0] == losses[1]
    assert said[6:] == []


def test_auto_takes_the_engine_that_claims_the_machine() -> None:
    job = job_of("train.device=mine")
    assert (job.engine.spec.name, job.engine.config, job.as_dict()["engine"]) == ("hosted", Settings(), {"use": "auto"})
    assert job_of("train.device=cpu").engine.spec.name == "native"
    assert resolve(toy.registry(Plugin), job.as_dict()) == job
    changed = job_of("train.device=mine", "engine.level=2")
    assert changed.as_dict()["engine"] == {"use": "auto", "level": 2}


def test_two_engines_that_claim_one_machine() -> None:
    with pytest.raises(ConfigError, match=r"^engine: hosted and rival all claim this machine; name one: engine=hosted"):
        resolve(toy.registry(Plugin, Rival), "toy", ["train.device=mine"])


def test_its_problems_are_told_with_the_others() -> None:
    with pytest.raises(ConfigError) as error:
        checked_job(toy.registry(Plugin), "toy", ["engine=hosted", "train.compile=true", "train.micro_batch=1"], 3)
    assert "train.compile: hosted compiles nothing" in str(error.value)
    assert "--processes: hosted takes 1 or 2" in str(error.value)
    with pytest.raises(ConfigError, match=r"engine\.level: expected a whole number, got 'high'"):
        job_of("engine=hosted", "engine.level=high")


def test_what_it_says_before_a_run() -> None:
    job = job_of("engine=hosted", "layout=fsdp", *dry_run_arguments([]))
    assert variables(job, 2, False) == [Variable("HOSTED", "2", "its own")]
    assert one_process(job.engine, job.layout)
    assert not one_process(job.engine, job_of("layout=ddp").layout)  # which divides nothing
    assert precompile(job, [], None, 1) == 5
    told = list(engine_findings(toy.registry(Plugin), {}))
    assert Finding("Engine hosted", "warning", "no device", "buy one") in told
