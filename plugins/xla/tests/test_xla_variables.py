"""The environment variables of runs over PyTorch/XLA, and Neuron's tool that compiles before them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import recipe_xla.plugin
from recipe_core.cli import precompile
from recipe_core.engine.machine import environment
from recipe_core.engine.machine.environment import Variable, prepare, variables
from recipe_core.engine.neuron import stack
from recipe_core.engine.select import engine_problems
from recipe_core.errors import LaunchError
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import toy
from recipe_core.testing.packages import install
from recipe_xla import machine
from recipe_xla.machine import refused

LEGACY = {
    "NEURON_CC_FLAGS": "--model-type=transformer --retry_failed_compilation", "NEURON_FUSE_SOFTMAX": "1",
    "NEURON_RT_EXEC_TIMEOUT": "600", "NEURON_NUM_RECENT_MODELS_TO_KEEP": "3",
    "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB": "50", "MALLOC_ARENA_MAX": "64",
}  # fmt: skip
NETWORK = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}


@pytest.fixture
def site(bare_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Neuron over PyTorch/XLA."""
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    for name in (*LEGACY, *NETWORK, "PJRT_DEVICE", "USE_TORCH_XLA", "XLA_USE_BF16", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NEURON_EXTRACT_GRAPHS_ONLY", "XLA_DOWNCAST_BF16"):
        monkeypatch.delenv(name, raising=False)
    install(bare_site, "torch-neuronx", "2.9.0.2.11")
    install(bare_site, "torch-xla", "2.9.0")
    monkeypatch.setattr(machine, "find_spec", lambda name: name if name in ("torch_xla", "libneuronxla") else None)
    return bare_site


def job_of(*words: str) -> Job:
    return resolve(toy.registry(recipe_xla.plugin), "toy", words)


def named(found: list[Variable]) -> dict[str, str]:
    return {one.name: one.value for one in found}


def test_the_engine_of_this_machine_sets_its_variables(site: Path) -> None:
    job, bf16 = job_of(), job_of("train.precision=bf16")
    assert (job.engine.spec.name, job.auto, job.as_dict()["engine"]) == ("xla", True, {"use": "auto"})
    assert named(variables(job, 2, several_machines=False)) == LEGACY
    assert named(variables(bf16, 2, several_machines=False)) == LEGACY | {"NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"}
    assert named(variables(job, 64, several_machines=True)) == LEGACY | NETWORK
    assert named(variables(job_of("train.device=cpu"), 2, several_machines=True)) == {"USE_TORCH_XLA": "0"}
    assert all(one.why for one in variables(bf16, 2, several_machines=True))


def test_a_process_that_drives_all_devices_of_a_cpu_is_told_how_many(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "neuron", lambda: None)
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert named(variables(job_of("train.engine=xla", "layout=tp"), 4, several_machines=False)) == {
        "CPU_NUM_DEVICES": "4"
    }
    assert variables(job_of("train.engine=xla"), 4, several_machines=False) == []


def test_arenas_are_limited_in_a_process_that_runs_already(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    limits: list[int] = []
    monkeypatch.setattr(environment, "_limit_arenas", limits.append)
    prepare(job_of(), 1)
    prepare(job_of(), 1)  # now the environment says it
    assert limits == [64]


@pytest.mark.parametrize("name", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_variables_that_a_run_on_xla_refuses(site: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(refused({name: "0"})) == []
    monkeypatch.setenv(name, "1")
    native, job = job_of("train.engine=native", "train.device=cpu"), job_of()
    assert list(engine_problems(native.engine, native.train, None)) == []  # PyTorch by itself does not read them
    problem = list(engine_problems(job.engine, job.train, None))[-1]
    assert problem.startswith(f"the environment says {name}=1, which makes bf16 of every fp32 tensor on XLA")
    assert f"unset {name}, and take train.precision=bf16" in problem


def test_worker_counts_are_checked_for_this_machine(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.parent / "product").write_text("trn1.32xlarge")
    job = job_of()

    def problems(processes: int) -> list[str]:
        return list(engine_problems(job.engine, job.train, job.layout, processes))

    assert problems(32) == []
    assert "takes 1, 2, 8 or 32 processes, and this run has 64 on it" in problems(64)[0]
    rank = {
        "RANK": "9", "WORLD_SIZE": "64", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "32", "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }  # fmt: skip
    for variable, value in rank.items():
        monkeypatch.setenv(variable, value)
    assert problems(64) == []  # 32 here, 32 elsewhere


def test_neurons_tool_runs_the_same_line(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool, cached = tmp_path / "neuron_parallel_compile", tmp_path / "cache"
    cached.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\ntouch {cached}/a.neff {cached}/b.neff\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(cached))
    words = ["toy", "train.lr=0.1"]
    assert precompile.precompile(dry_run_job(), words, None, 8) == 0
    called = (tmp_path / "called").read_text().split()
    assert called == [sys.executable, "-m", "recipe_core.cli", "precompile", *words, "--processes", "8"]
    assert f"2 graphs compiled, 0 s; kept in {cached}" in capsys.readouterr().out
    tool.write_text("#!/bin/sh\nexit 3\n")
    assert precompile.precompile(dry_run_job(), words, None, 8) == 3


def test_without_neurons_tool_the_way_out_is_told(site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="neuron_parallel_compile is not on the path; it comes with torch-neuronx"):
        precompile.precompile(dry_run_job(), [], None, 2)


def dry_run_job() -> Job:
    return job_of(*precompile.dry_run_arguments([]))
