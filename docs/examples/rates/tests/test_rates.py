"""The table shows the rates that a run logs, and the command conforms."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.cli.main import main
from recipe_core.settings.job import resolve
from recipe_core.testing import PluginConformance, toy
from recipe_core.testing.packages import install_plugin
from recipe_core.train.metrics.curves import read_rows
from recipe_core.train.run import run

plugin = pytest.importorskip("recipe_rates.plugin", reason="the example is not installed")
WORDS = ("train.steps=5", "train.schedule=linear", "train.warmup_steps=2", "train.lr=0.1", "train.device=cpu")


class TestRates(PluginConformance):
    plugin = "recipe_rates.plugin"


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path, "toy", "recipe_core.testing.toy")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RECIPE_PLUGINS", "toy,rates")


def printed(capsys: pytest.CaptureFixture[str]) -> list[float]:
    return [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()[2:]]


def test_it_prints_the_rates_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(resolve(toy.registry(), "toy", [*WORDS, "train.log_every=1", "train.trackers="]), tmp_path / "run")
    logged = [row["lr"] for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "lr" in row]
    capsys.readouterr()
    assert main(["rates", "toy", *WORDS, "--rows", "5"]) == 0
    assert printed(capsys) == pytest.approx(logged, rel=5e-3)
    assert main(["rates", str(tmp_path / "run"), "--rows", "5"]) == 0
    assert printed(capsys) == pytest.approx(logged, rel=5e-3)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rates", "toy", *WORDS, "--rows", "3"]) == 0
    assert capsys.readouterr().out == (
        "toy: linear, 5 steps\n"
        "    step  rate     \n"
        "       1  0\n"
        "       3  0.1        ########################################\n"
        "       5  0.0333     #############\n"
    )


def test_a_schedule_of_zeros_has_no_bars(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rates", "toy", "train.steps=1", "train.schedule=linear", "train.warmup_steps=5"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "       1  0"


def test_a_mistake_is_said_as_recipe_run_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rates", "toy", "--lr", "0.1"]) == 2
    assert capsys.readouterr().err == "recipe rates: --lr: no such option; write `train.lr=0.1`\n"
