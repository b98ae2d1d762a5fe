"""The installed Neuron stack, by files of its installers, and the process counts that an instance supports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_core.engine.machine import packages
from recipe_core.engine.neuron import stack


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, before all others."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def install(site: Path, name: str, version: str, size: int = 1_000_000, *, editable: bool = False) -> None:
    """The files that pip leaves of a package with ``size`` bytes of code."""
    module = name.replace("-", "_")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (site / module).mkdir()
    (site / module / "__init__.py").write_text("#" * size)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{module}/__init__.py,,{size}\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    (info / "LICENSE").write_text("x" * 100_000)  # papers are no code
    if editable:
        (info / "direct_url.json").write_text(json.dumps({"url": "file:///src", "dir_info": {"editable": True}}))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the hypervisor tells the instance type."""
    product = tmp_path / "product_name"
    monkeypatch.setattr(packages, "_PRODUCT", product)
    return product


def test_a_package_of_the_public_index_is_a_placeholder(site: Path) -> None:
    install(site, "torch-neuronx", "1.0", size=119)
    install(site, "neuronx-distributed", "0.1", size=119)
    for name in ("torch-neuronx", "neuronx-distributed"):
        found = packages.package(name)
        assert found is not None
        assert found.placeholder
    assert stack.neuron() is None
    assert stack.at_hand("auto") is None


def test_the_two_stacks_of_one_name(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert packages.package("torch-neuronx") is None
    install(site, "torch-neuronx", "2.9.0.2.11.19912+e48cd891")
    assert (stack.neuron(), stack.at_hand("auto"), stack.at_hand("xla")) == ("legacy",) * 3
    assert stack.at_hand("cpu") is None
    assert stack.at_hand("auto", "native") is None
    other = site.parent / "other"
    install(other, "torch-neuronx", "2.13.3.0.123")
    monkeypatch.syspath_prepend(other)
    assert (stack.neuron(), stack.at_hand("auto"), stack.at_hand("neuron", "native")) == ("native",) * 3
    assert stack.at_hand("xla") is None
    assert stack.at_hand("auto", "xla") is None


def test_sources_that_are_linked_are_no_placeholder_and_other_names_never_are(site: Path) -> None:
    install(site, "torch-neuronx", "2.13.3.0", size=10, editable=True)
    install(site, "recipe-tiny", "0.1", size=10)
    assert stack.neuron() == "native"
    found = packages.package("recipe-tiny")
    assert found is not None
    assert not found.placeholder
    assert found.release == (0, 1)


@pytest.mark.parametrize(
    ("kind", "fitting"), [("trn1.2xlarge", {1, 2}), ("trn1.32xlarge", {1, 2, 8, 32}), ("trn1n.32xlarge", {1, 2, 8, 32})]
)
def test_an_instance_takes_some_counts_and_no_others(machine: Path, kind: str, fitting: set[int]) -> None:
    machine.write_text(f"{kind}\n")
    assert packages.instance() == kind
    assert {n for n in range(1, 65) if not list(stack.worker_problems("legacy", n))} == fitting
    assert not list(stack.worker_problems(None, 3))  # on its CPU


def test_a_wrong_count_is_told_with_the_right_ones(machine: Path) -> None:
    machine.write_text("trn1.32xlarge\n")
    assert list(stack.worker_problems("legacy", 16)) == [
        "--processes: a trn1.32xlarge takes 1, 2, 8 or 32 processes, and this run has 16 on it: its NeuronCores are "
        "connected for no other number; start 8"
    ]


def test_an_unknown_machine_takes_any_count(machine: Path) -> None:
    assert packages.instance() == ""
    assert not list(stack.worker_problems("legacy", 3))
    machine.write_text("Standard PC (Q35 + ICH9, 2009)\n")
    assert not list(stack.worker_problems("native", 3))
