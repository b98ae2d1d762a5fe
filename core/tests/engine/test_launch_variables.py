"""The environment variables of a run: which, for whom, and that what a user set stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.cli.main import cli, main
from recipe_core.engine.machine.environment import Variable, add, prepare, variables
from recipe_core.engine.select import engine_problems
from recipe_core.launch.cores import SPIN_VARIABLES, limit_spinning
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import toy
from recipe_core.testing.packages import install, install_plugin

PLUGIN = (Path(__file__).parents[1] / "fake_plugin.py").read_text(encoding="utf-8")
NETWORK = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}


@pytest.fixture
def site(bare_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    for name in (*NETWORK, *SPIN_VARIABLES, "USE_TORCH_XLA", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # so that what a command sets is taken back, too
        monkeypatch.delenv(name)
    return bare_site


def job_of(*words: str) -> Job:
    return resolve(toy.registry(), "toy", words)


def named(found: list[Variable]) -> dict[str, str]:
    return {one.name: one.value for one in found}


def test_without_a_neuron_stack_nothing_is_set(site: Path) -> None:
    assert variables(job_of(), 4, several_machines=True) == []


def test_the_native_stack(site: Path, tmp_path: Path) -> None:
    install(site, "torch-neuronx", "2.13.3.0")
    cache = {"TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "cache" / "compiled")}
    assert named(variables(job_of(), 1, several_machines=False)) == cache
    assert named(variables(job_of(), 4, several_machines=False)) == cache
    divided, tp = cache | {"TORCH_NEURONX_ENABLE_HOST_CC": "1"}, job_of("layout=tp")
    assert named(variables(tp, 4, several_machines=False)) == divided
    assert named(variables(tp, 64, several_machines=True)) == divided | NETWORK
    assert variables(job_of("train.device=cpu"), 4, several_machines=True) == []


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
    prepare(job_of(), 1)
    assert {name: environment[name] for name in NETWORK} == NETWORK | {"FI_PROVIDER": "tcp"}


def test_a_torch_xla_beside_it_is_hidden_from_transformers(site: Path) -> None:
    install(site, "torch-xla", "2.9.0")
    assert named(variables(job_of("train.device=cpu"), 2, several_machines=True)) == {"USE_TORCH_XLA": "0"}


def test_worker_counts_are_checked_for_this_machine(site: Path) -> None:
    install(site, "torch-neuronx", "2.13.3.0")
    (site.parent / "product").write_text("trn1.32xlarge")
    job = job_of()
    assert list(engine_problems(job.engine, job.train, job.layout, 32)) == []
    assert list(engine_problems(job.engine, job.train, job.layout)) == []
    (problem,) = engine_problems(job.engine, job.train, job.layout, 64)
    assert "takes 1, 2, 8 or 32 processes, and this run has 64 on it" in problem


@pytest.fixture
def fake(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe that writes down its environment instead of training, on whatever device."""
    code = PLUGIN.replace("sys.argv[1:]", 'dict(__import__("os").environ)').replace('device="cpu"', 'device="auto"')
    (site / "fake_plugin.py").write_text(code)
    install_plugin(site, "fake_plugin", "fake_plugin", version="1.2")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("RECIPE_PLUGINS", "fake_plugin")
    monkeypatch.delitem(sys.modules, "fake_plugin", raising=False)
    monkeypatch.chdir(site.parent)
    return site


def test_check_shows_what_a_run_will_set(
    fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "fake"]) == 0
    why = "waiting threads soon leave their core; 0 beside other programs"
    spinning = f"GOMP_SPINCOUNT=2000 KMP_BLOCKTIME=1  {why}"
    shown = capsys.readouterr().out.partition("environment         set for the run, unless you set them\n")[2]
    assert shown.strip() == spinning
    assert not set(SPIN_VARIABLES) & set(os.environ)  # or this very command would take them for the user's
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert main(["check", "fake"]) == 0
    assert "OMP_WAIT_POLICY=passive  yours; how long waiting threads spin\n" in capsys.readouterr().out
    install(fake, "torch-neuronx", "2.13.3.0")
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", "/mine")
    assert main(["check", "fake", "--processes", "2"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    begin = lines.index("environment         set for the run, unless you set them")
    printed = [" ".join(line.split()) for line in lines[begin + 1 :]]
    assert printed[0].startswith("TORCH_NEURONX_NEFF_CACHE_DIR=/mine yours; not ")
    assert printed[-1] == "FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_EFA_FORK_SAFE=1 over several machines"


def recipe_command(others_use_cores: bool) -> list[str]:
    """A command line of ``recipe`` on a machine whose cores other programs use or leave alone."""
    code = (
        "import sys\n"
        "from recipe_core.cli.main import main\n"
        "from recipe_core.launch.cores import OthersAtStart\n"
        f"OthersAtStart.use_cores = lambda self: {others_use_cores}\n"
        "sys.exit(main())"
    )
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(("busy", "limits"), [(False, ("2000", "1")), (True, ("0", "0"))])
def test_the_launcher_sets_them_for_every_rank(fake: Path, busy: bool, limits: tuple[str, str]) -> None:
    install(fake, "torch-xla", "2.9.0")
    command = [*recipe_command(busy), "run", "fake", "train.device=cpu", "--processes", "2"]
    done = subprocess.run([*command, "--out", "here"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        found = json.loads(Path(f"here/called-{rank}.json").read_text())["words"]
        assert found["USE_TORCH_XLA"] == "0"
        assert (found["GOMP_SPINCOUNT"], found["KMP_BLOCKTIME"]) == limits


@pytest.mark.parametrize("name", SPIN_VARIABLES)
@pytest.mark.parametrize("value", ["1", ""])
def test_a_users_word_on_spinning_stays_alone(name: str, value: str) -> None:
    environment = {name: value}
    limit_spinning(environment)
    assert environment == {name: value}


@pytest.mark.parametrize("name", cli.commands)
def test_every_command_that_computes_limits_spinning_before_anything_else(
    site: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(cli.commands[name], "params", [])
    monkeypatch.setattr(cli.commands[name], "no_args_is_help", False)
    monkeypatch.setattr(cli.commands[name], "invoke", lambda _: seen.append(os.environ.get("GOMP_SPINCOUNT")))
    main([name])
    assert seen == [None if name in ("check", "doctor", "submit") else "2000"]


@pytest.mark.parametrize(
    ("theirs", "busy", "ours", "count"),
    [
        ({}, False, "2000", "2000"),
        ({}, True, "0", "0"),
        ({"OMP_WAIT_POLICY": "passive"}, False, None, "0"),
        ({"GOMP_SPINCOUNT": "300000"}, True, "300000", "300000"),
    ],
)
def test_the_library_of_pytorch_takes_the_limit(
    fake: Path, theirs: dict[str, str], busy: bool, ours: str | None, count: str
) -> None:
    """In a run of one process, which imports PyTorch itself: libgomp reads the variable when it is loaded."""
    plugin = fake / "fake_plugin.py"
    said = 'said = {"torch": "torch" in sys.modules, '
    code = plugin.read_text().replace("said = {", said) + "    import torch\n"
    plugin.write_text(code)
    command = [*recipe_command(busy), "run", "fake", "train.device=cpu", "--out", "here"]
    environment = {**os.environ, **theirs, "OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(Path("here/called-None.json").read_text())
    assert not found["torch"]
    assert found["words"].get("GOMP_SPINCOUNT") == ours
    if "GOMP_" not in done.stderr:
        pytest.skip("this PyTorch uses another OpenMP library than libgomp")
    assert f"GOMP_SPINCOUNT = '{count}'" in done.stderr
