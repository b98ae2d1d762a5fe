"""The doctor on simulated machines: packages and devices are files in folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.cli.commands import doctor as doctor_command
from recipe_core.cli.doctor import Finding, machine, packages, variables
from recipe_core.cli.doctor.plugins import engine_findings
from recipe_core.cli.main import main
from recipe_core.engine import select
from recipe_core.engine.machine import packages as installed
from recipe_core.engine.machine import probe
from recipe_core.engine.machine.probe import ProbeAnswer, ask
from recipe_core.engine.neuron import doctor as native
from recipe_core.testing import toy
from recipe_core.testing.packages import install

GOOD = {
    "version": "2.13.0", "cuda": None, "hip": None, "distributed": True, "bf16": True, "sum": probe.RIGHT_SUM,
}  # fmt: skip


@pytest.fixture
def site(bare_site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages at the start of sys.path, and imitations of libraries."""
    monkeypatch.setattr(probe, "ask", lambda program, more=None: ProbeAnswer(dict(GOOD, device="cpu", count=1)))
    return bare_site


def neuron(environment: dict[str, str] | None = None) -> list[Finding]:
    return list(native.findings(environment or {}))


def texts_of(findings: list[Finding], state: str) -> str:
    return "\n".join(f"{f.text} -> {f.remedy}" for f in findings if f.state == state)


# ---- packages ---------------------------------------------------------------------------------------------------


def test_placeholders_are_named_as_such(site: Path) -> None:
    install(site, "torch", "2.13.0")
    for name in installed.PLACEHOLDERS:
        install(site, name, "1.0", size=119)
    broken = texts_of(neuron(), "broken")
    for name in installed.PLACEHOLDERS:
        assert f"{name} 1.0 is a placeholder" in broken
        assert f"pip uninstall {name};" in broken


def test_a_working_legacy_stack(site: Path) -> None:
    (site.parent / "product").write_text("trn1.32xlarge")
    for name, version in {
        "torch": "2.9.0", "torch-xla": "2.9.0", "torch-neuronx": "2.9.0.2.11", "neuronx-distributed": "0.18.1",
        "neuronx-cc": "2.21.1", "transformers": "4.57.1",
    }.items():  # fmt: skip
        install(site, name, version)
    found = list(packages.package_findings())
    assert texts_of(found, "broken") == ""
    found = [one for one in neuron() if one.topic == "Packages"]
    assert texts_of(found, "broken") == ""
    assert "torch-neuronx 2.9.0.2.11, the real one" in texts_of(found, "ok")
    assert "neuronx-distributed 0.18.1, the real one" in texts_of(found, "ok")


@pytest.mark.parametrize(
    ("installed", "instance", "expected"),
    [
        ({"torch": "2.8.1"}, "", "torch 2.8.1 is too old -> pip install 'torch>=2.9'"),
        ({"torch": "2.13.0", "torch-neuronx": "2.14.3.0"}, "", "torch-neuronx 2.14.3.0 needs torch 2.14, and this is"),
        ({"torch": "2.9.0", "torch-neuronx": "2.9.0.2"}, "", "runs over torch-xla, which is not installed"),
        ({"torch": "2.13.0", "torch-neuronx": "2.13.3"}, "", "neuronx-cc, the compiler, is not installed"),
        ({"torch": "2.13.0", "torch-neuronx": "2.13.3"}, "trn1.32xlarge", "the native Neuron stack does not know trn1"),
        ({"torch": "2.9.0", "torch-neuronx": "2.9.0.2"}, "trn3.48xlarge", "the legacy Neuron stack does not know trn3"),
        ({"torch": "2.13.0"}, "trn2.48xlarge", "this is a trn2.48xlarge, and torch-neuronx is not installed"),
    ],
)  # fmt: skip
def test_packages_that_do_not_fit(site: Path, installed: dict[str, str], instance: str, expected: str) -> None:
    (site.parent / "product").write_text(instance)
    for name, version in installed.items():
        install(site, name, version)
    assert expected in texts_of([*packages.package_findings(), *neuron()], "broken")


def test_what_transformers_clashes_with(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USE_TORCH_XLA", raising=False)
    for name, version in {
        "torch": "2.9.0", "torch-xla": "2.9.0", "neuronx-distributed": "0.18", "transformers": "5.1.0",
    }.items():  # fmt: skip
        install(site, name, version)
    warnings = texts_of(neuron(), "warning")
    assert (
        "neuronx-distributed 0.18 imports as a whole only beside transformers 4 -> pip install 'transformers<5'"
        in warnings
    )
    assert "sets USE_TORCH_XLA=0" in warnings
    assert "training_args" not in warnings
    install(site, "torch-neuronx", "1.0", size=119)
    monkeypatch.setenv("USE_TORCH_XLA", "0")
    warnings = texts_of(neuron(), "warning")
    assert "USE_TORCH_XLA" not in warnings
    assert "transformers.training_args starts a process group" in warnings


def test_a_torch_that_does_not_work(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "torch", "2.13.0")
    monkeypatch.setattr(probe, "ask", lambda program, more=None: ProbeAnswer(problem="ImportError: libgomp.so.1"))
    assert "torch 2.13.0 does not work: ImportError: libgomp.so.1" in texts_of(
        list(packages.package_findings()), "broken"
    )
    monkeypatch.setattr(probe, "ask", lambda program, more=None: ProbeAnswer(dict(GOOD, sum=511.0)))
    assert "a product of ones gave 511.0" in texts_of(list(packages.package_findings()), "broken")


def test_a_library_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert ask('import json, os; print("FOUND" + json.dumps({"rank": os.environ.get("RANK")}))').found == {"rank": None}
    assert ask("print('warm'); import os; os.kill(os.getpid(), 9)").problem == "the process was ended by signal 9"
    assert ask("import a_module_that_is_not_there").problem.startswith("ModuleNotFoundError: No module named")
    assert ask("import time; time.sleep(60)", timeout=0.2).problem == "no answer within 0 seconds"


# ---- machine ----------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without devices."""
    monkeypatch.setattr(machine, "_ROOT", tmp_path / "root")
    monkeypatch.setattr(native, "_ROOT", tmp_path / "root")
    monkeypatch.setattr(installed, "_PRODUCT", tmp_path / "product")
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_a_machine_without_devices_has_nothing_broken(root: Path) -> None:
    found = [*machine.machine_findings(root / "runs"), *neuron()]
    assert texts_of(found, "broken") == ""
    assert "no Neuron device and no Neuron driver" in texts_of(found, "note")
    assert "processor core" in texts_of(found, "ok")


def test_trainium_without_its_driver(root: Path) -> None:
    (root.parent / "product").write_text("trn1.32xlarge\n")
    found = [*machine.machine_findings(root), *neuron()]
    assert "no Neuron driver is loaded (no /dev/neuron0) -> install aws-neuronx-dkms" in texts_of(found, "broken")
    assert "this trn1.32xlarge was started without EFA" in texts_of(found, "warning")


def test_a_driver_that_shows_no_device(root: Path) -> None:
    module = root / "sys/module/neuron"
    module.mkdir(parents=True)
    (module / "version").write_text("2.21.37.0\n")
    assert "the Neuron driver 2.21.37.0 is loaded and shows no device" in texts_of(
        [*machine.machine_findings(root), *neuron()], "broken"
    )


def test_a_working_trainium_machine(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root.parent / "product").write_text("trn1.32xlarge\n")
    module = root / "sys/module/neuron"
    module.mkdir(parents=True)
    (module / "version").write_text("2.21.37.0\n")
    (root / "dev").mkdir()
    for number in range(16):
        (root / f"dev/neuron{number}").touch()
        (root / f"dev/neuron_core{number}").touch()  # another kind of file
    for number in range(8):
        (root / f"sys/class/infiniband/rdmap{number}s27").mkdir(parents=True)
    for tool in ("opt/aws/neuron/bin/neuron-ls", "opt/amazon/efa/bin/fi_info"):
        (root / tool).parent.mkdir(parents=True)
        (root / tool).touch()
    monkeypatch.setattr(machine, "_soft_limit", lambda name: -1)
    found = [*machine.machine_findings(root), *(one for one in neuron() if one.topic == "Devices")]
    assert "16 Neuron devices, driver 2.21.37.0" in texts_of(found, "ok")
    assert "8 EFA devices" in texts_of(found, "ok")
    assert texts_of(found, "broken") == ""


def test_limits_and_disks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"RLIMIT_NOFILE": 1024, "RLIMIT_NPROC": 100, "RLIMIT_AS": 2_000_000_000}
    monkeypatch.setattr(machine, "_soft_limit", lambda name: limits.get(name, -1))
    monkeypatch.setattr(machine, "_LOW_SPACE", 10**18)
    warnings = texts_of(list(machine.machine_findings(root / "runs")), "warning")
    assert "1,024 open files, few for many ranks -> ulimit -n 65535" in warnings
    assert "100 processes and threads" in warnings
    assert "address space is limited to 2 GB -> ulimit -v unlimited" in warnings
    assert f"free for {root / 'runs'} -> make room" in warnings


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(root: Path) -> None:
    root.chmod(0o500)
    assert f"runs: {root / 'runs'} cannot be written" in texts_of(
        list(machine.machine_findings(root / "runs")), "broken"
    )


# ---- variables --------------------------------------------------------------------------------------------------


def test_an_empty_environment_has_no_findings() -> None:
    assert [finding.state for finding in variables.variable_findings({})] == ["ok", "ok"]
    findings = neuron({"NEURON_EXTRACT_GRAPHS_ONLY": ""})
    assert [finding for finding in findings if finding.topic == "Environment variables"] == []


@pytest.mark.parametrize(
    ("environment", "state", "expected"),
    [
        ({"NEURON_EXTRACT_GRAPHS_ONLY": "1"}, "broken", "every loss is wrong"),
        ({"TORCH_NEURONX_COMPILE_ONLY": "1"}, "broken", "nothing is computed"),
        ({"BUCKET_CAP_MB": "100"}, "warning", "set ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB instead"),
        ({"RANK": "0"}, "broken", "the environment says RANK but not"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "note", "this process is rank 0 of 1 (torchrun)"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "note", "only these GPUs are seen: none"),
        ({"USE_TORCH_XLA": "0"}, "note", "USE_TORCH_XLA=0"),
        ({}, "ok", "GOMP_SPINCOUNT=2000, KMP_BLOCKTIME=1: set for every command that computes"),
        ({"OMP_WAIT_POLICY": "active"}, "note", "OMP_WAIT_POLICY=active: yours"),
    ],
)  # fmt: skip
def test_variables_that_matter(environment: dict[str, str], state: str, expected: str) -> None:
    assert expected in texts_of([*variables.variable_findings(environment), *neuron(environment)], state)


def test_variables_of_the_native_stack(site: Path) -> None:
    install(site, "torch-neuronx", "2.13.3.0")
    found = neuron({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "NEURON_COMPILE_CACHE_URL": "/x"})
    assert "PyTorch does not find the device neuron" in texts_of(found, "broken")
    assert "TORCH_NEURONX_NEFF_CACHE_DIR" in texts_of(found, "warning")


# ---- engines ----------------------------------------------------------------------------------------------------


def test_every_engine_is_listed_with_what_it_finds(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "torch-neuronx", "1.0", size=119)
    found = list(engine_findings(toy.registry(), {}))
    assert found[0] == Finding(
        "Engine native", "ok", "PyTorch's own devices: CPU, CUDA, and any that torch.accelerator knows"
    )
    assert {one.topic for one in found} == {"Engine native"}
    assert "torch-neuronx 1.0 is a placeholder" in texts_of(found, "broken")


def test_a_torch_xla_that_nothing_drives(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "torch-xla", "2.9.0")
    monkeypatch.setattr(select, "find_spec", lambda name: None)
    assert "the plugin that runs on it is not -> pip install recipe-xla" in texts_of(neuron(), "warning")
    monkeypatch.setattr(select, "find_spec", lambda name: name if name == "recipe_xla" else None)
    assert "recipe-xla" not in texts_of(neuron(), "warning")


# ---- the command ------------------------------------------------------------------------------------------------


def test_the_command_prints_topic_by_topic_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        Finding("Packages", "ok", "Python 3.11"), Finding("Packages", "broken", "x is a placeholder", "uninstall it"),
        Finding("Disk", "warning", "little room", "make some"),
    ]  # fmt: skip
    monkeypatch.setattr("recipe_core.cli.doctor.examine", lambda runs: iter(found))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "Packages", "  ok       Python 3.11", "  broken   x is a placeholder", "           -> uninstall it", "",
        "Disk", "  warning  little room", "           -> make some", "", "1 broken, 1 warning",
    ]  # fmt: skip
    assert main(["doctor", "--json"]) == 1
    results = json.loads(capsys.readouterr().out)
    assert (results["ok"], results["note"], results["warning"], results["broken"]) == (1, 0, 1, 1)
    assert results["findings"][1] == {
        "topic": "Packages", "state": "broken", "text": "x is a placeholder", "remedy": "uninstall it",
    }  # fmt: skip
    del found[1]
    assert main(["doctor"]) == 0
    assert doctor_command._summary([]) == "Nothing is broken."


def test_the_command_imports_no_torch_and_finds_nothing_broken_here(tmp_path: Path) -> None:
    code = (
        "import sys; from recipe_core.cli.main import main; code = main(['doctor', '--json']); "
        "print('torch' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    plain = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=plain | {"RECIPE_PLUGINS": "core"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stderr.strip() == "False"
    results = json.loads(done.stdout)
    texts = [finding["text"] for finding in results["findings"] if finding["state"] == "ok"]
    assert any(text.startswith("torch ") and "computes on" in text for text in texts)
    assert done.returncode == (1 if results["broken"] else 0)
