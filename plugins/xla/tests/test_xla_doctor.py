"""The doctor's findings on torch-xla and its variables, on machines that tests make up."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.engine.machine import probe
from recipe_core.engine.machine.probe import ProbeAnswer
from recipe_core.hooks.finding import Finding
from recipe_core.testing.packages import install
from recipe_xla.doctor import findings


@pytest.fixture
def site(bare_site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, and a library that answers at once."""
    answer = ProbeAnswer({"version": "2.9.0", "sum": probe.RIGHT_SUM, "device": "CPU", "count": 1})
    monkeypatch.setattr(probe, "ask", lambda program, more=None: answer)
    return bare_site


def said(state: str, environment: dict[str, str] | None = None) -> str:
    reported: list[Finding] = list(findings(environment or {}))
    return "\n".join(f"{one.text} -> {one.remedy}" for one in reported if one.state == state)


def test_torch_xla(site: Path) -> None:
    assert "torch-xla is not installed: checkpoints convert, and no run computes with it" in said("note")
    install(site, "torch", "2.9.0")
    install(site, "torch-xla", "2.9.0")
    assert said("ok") == "torch-xla 2.9.0; computes on 1 x CPU -> "


def test_a_torch_xla_of_another_torch(site: Path) -> None:
    install(site, "torch", "2.13.0")
    install(site, "torch-xla", "2.9.0")
    assert "torch-xla 2.9.0 is built for torch 2.9, and this is torch 2.13.0" in said("broken")


def test_a_torch_xla_that_does_not_work(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "torch-xla", "2.9.0")
    monkeypatch.setattr(probe, "ask", lambda program, more=None: ProbeAnswer(problem="ImportError: x"))
    assert "torch-xla 2.9.0 does not work: ImportError: x -> set PJRT_DEVICE" in said("broken")
    monkeypatch.setattr(probe, "ask", lambda program, more=None: ProbeAnswer({"sum": 511.0}))
    assert "torch-xla: a product of ones gave 511.0" in said("broken")


@pytest.mark.parametrize("name", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_variables_that_make_bf16_of_everything(site: Path, name: str) -> None:
    assert said("broken", {name: "0"}) == ""
    assert f"-> unset {name}; take train.precision=bf16" in said("broken", {name: "1"})


def test_a_device_that_nothing_reads_or_that_is_no_trainium(site: Path) -> None:
    assert "PJRT_DEVICE=TPU: torch-xla, which reads it, is not installed" in said("note", {"PJRT_DEVICE": "TPU"})
    install(site, "torch-neuronx", "2.9.0.2")
    assert "PJRT_DEVICE=CPU: XLA will not use Trainium" in said("warning", {"PJRT_DEVICE": "CPU"})
