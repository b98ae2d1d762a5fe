"""The environment variables of Neuron runs: which, for whom, and that what a user set stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.cli.check import parts
from recipe_core.cli.main import main
from recipe_core.engine import environment as launch_variables
from recipe_core.engine.environment import Variable, add, prepare, refused, variables
from recipe_core.engine.select import engine_problems
from recipe_core.hooks.train import Train

AUTO = Train()
BF16 = Train(precision="bf16")
PLUGIN = (Path(__file__).parents[1] / "fake_plugin.py").read_text(encoding="utf-8")
LEGACY = {
    "NEURON_CC_FLAGS": "--model-type=transformer --retry_failed_compilation", "NEURON_FUSE_SOFTMAX": "1",
    "NEURON_RT_EXEC_TIMEOUT": "600", "NEURON_NUM_RECENT_MODELS_TO_KEEP": "3",
    "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB": "50", "MALLOC_ARENA_MAX": "64",
}  # fmt: skip
NETWORK = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}


def install(site: Path, name: str, version: str) -> None:
    """What pip leaves of a package that is real."""
    module = name.replace("-", "_")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / f"{module}.so").write_bytes(b"")  # no module of Python: nothing here can be imported
    (info / "RECORD").write_text(f"{module}.so,,\n")


@pytest.fixture
def site(bare_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    for name in (*LEGACY, *NETWORK, "USE_TORCH_XLA", "XLA_USE_BF16", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return bare_site


def named(found: list[Variable]) -> dict[str, str]:
    return {one.name: one.value for one in found}


def test_without_a_neuron_stack_nothing_is_set(site: Path) -> None:
    assert variables(AUTO, 4, several_machines=True) == []


def test_the_stack_over_xla(site: Path) -> None:
    install(site, "torch-neuronx", "2.9.0.2.11")
    install(site, "torch-xla", "2.9.0")
    assert named(variables(AUTO, 2, several_machines=False)) == LEGACY
    assert named(variables(BF16, 2, several_machines=False)) == LEGACY | {"NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"}
    assert named(variables(AUTO, 64, several_machines=True)) == LEGACY | NETWORK
    assert named(variables(Train(device="cpu"), 2, several_machines=True)) == {"USE_TORCH_XLA": "0"}
    assert all(one.why for one in variables(BF16, 2, several_machines=True))


def test_the_native_stack(site: Path, tmp_path: Path) -> None:
    install(site, "torch-neuronx", "2.13.3.0")
    cache = {"TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "cache" / "compiled")}
    assert named(variables(AUTO, 1, several_machines=False)) == cache
    assert named(variables(AUTO, 4, several_machines=False)) == cache
    divided = cache | {"TORCH_NEURONX_ENABLE_HOST_CC": "1"}
    assert named(variables(AUTO, 4, several_machines=False, tp=True)) == divided
    assert named(variables(AUTO, 64, several_machines=True, tp=True)) == divided | NETWORK
    assert variables(Train(device="cpu"), 4, several_machines=True) == []


def test_what_a_user_set_stays_even_if_it_is_empty() -> None:
    environment = {"A": "mine", "B": ""}
    assert add(environment, [Variable("A", "1", ""), Variable("B", "2", ""), Variable("C", "3", "")]) == {"C": "3"}
    assert environment == {"A": "mine", "B": "", "C": "3"}


def test_ranks_over_several_machines_are_told_by_torchrun(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "torch-neuronx", "2.13.3.0")
    rank = {
        "RANK": "9",
        "WORLD_SIZE": "16",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "8",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }
    environment = os.environ.copy() | rank | {"FI_PROVIDER": "tcp"}
    monkeypatch.setattr(os, "environ", environment)
    prepare(AUTO, 1)
    assert {name: environment[name] for name in NETWORK} == NETWORK | {"FI_PROVIDER": "tcp"}


def test_arenas_are_limited_in_a_process_that_runs_already(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "torch-neuronx", "2.9.0.2.11")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    limits: list[int] = []
    monkeypatch.setattr(launch_variables, "_limit_arenas", limits.append)
    prepare(AUTO, 1)
    prepare(AUTO, 1)  # now the environment says it
    assert limits == [64]


@pytest.mark.parametrize("name", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_variables_that_a_run_on_xla_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(refused({name: "0"})) == []
    monkeypatch.setenv(name, "1")
    assert list(engine_problems(Train(engine="native"), None)) == []  # PyTorch by itself does not read them
    problem = list(engine_problems(Train(engine="xla"), None))[-1]
    assert problem.startswith(f"the environment says {name}=1, which makes bf16 of every fp32 tensor on XLA")
    assert f"unset {name}, and take train.precision=bf16" in problem


def test_worker_counts_are_checked_for_this_machine(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "torch-neuronx", "2.9.0.2.11")
    (site.parent / "product").write_text("trn1.32xlarge")
    assert list(parts.process_problems(AUTO, 32)) == []
    assert "takes 1, 2, 8 or 32 processes, and this run has 64 on it" in next(parts.process_problems(AUTO, 64))
    rank = {
        "RANK": "9",
        "WORLD_SIZE": "64",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "32",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }
    for variable, value in rank.items():
        monkeypatch.setenv(variable, value)
    assert list(parts.process_problems(AUTO, 64)) == []  # 32 here, 32 elsewhere


@pytest.fixture
def fake(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe that writes down its environment instead of training, on whatever device."""
    code = PLUGIN.replace("sys.argv[1:]", 'dict(__import__("os").environ)').replace('device="cpu"', 'device="auto"')
    info = site / "fake_plugin-1.2.dist-info"
    info.mkdir()
    (site / "fake_plugin.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake_plugin\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[recipe.plugins]\nfake_plugin = fake_plugin\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("RECIPE_PLUGINS", "fake_plugin")
    monkeypatch.delitem(sys.modules, "fake_plugin", raising=False)
    monkeypatch.chdir(site.parent)
    return site


def test_check_shows_what_a_run_will_set(
    fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "fake"]) == 0
    assert "environment" not in capsys.readouterr().out
    install(fake, "torch-neuronx", "2.9.0.2.11")
    monkeypatch.setenv("NEURON_CC_FLAGS", "--model-type=cnn")
    assert main(["check", "fake", "--processes", "2"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    begin = lines.index("environment         set for the run, unless you set them")
    told = [" ".join(line.split()) for line in lines[begin + 1 :]]
    assert "NEURON_FUSE_SOFTMAX=1 a faster softmax in attention" in told
    assert "NEURON_CC_FLAGS=--model-type=cnn yours; not --model-type=transformer --retry_failed_compilation" in told
    assert told[-1] == "FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_EFA_FORK_SAFE=1 over several machines"
    assert not LEGACY.keys() & (os.environ.keys() - {"NEURON_CC_FLAGS"})  # to look is not to set


def test_the_launcher_sets_them_for_every_rank(fake: Path) -> None:
    install(fake, "torch-neuronx", "2.9.0.2.11")
    command = [sys.executable, "-m", "recipe_core.cli", "run", "fake", "--processes", "2", "--out", "here"]
    environment = os.environ | {"NEURON_CC_FLAGS": "mine"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        seen = json.loads(Path(f"here/called-{rank}.json").read_text())["words"]
        assert {name: seen[name] for name in LEGACY} == LEGACY | {"NEURON_CC_FLAGS": "mine"}
