"""A run continues with the plugins that it began with, whatever is installed later."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from recipe_core import hookimpl, plugin
from recipe_core.errors import ConfigError, PluginError
from recipe_core.hooks.registry import Registry, load
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import toy
from recipe_core.train.run import run
from recipe_core.train.start.folder import require_same_run

RIVAL = SimpleNamespace(
    register_recipes=hookimpl(lambda: [replace(item, summary="a rival") for item in toy.register_recipes()]),
    register_models=hookimpl(toy.register_models),
    register_datasets=hookimpl(toy.register_datasets),
)
"""A second plugin with the same names."""


def both() -> Registry:
    modules = {"core": plugin, "toy": sys.modules[toy.__name__], "rival": RIVAL}
    return load([(name, partial(lambda module: module, module)) for name, module in modules.items()])


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run of before the second plugin was installed."""
    job = resolve(toy.registry(), "toy", ["train.device=cpu", "train.stop_after=2", "train.steps=4"])
    run(job, tmp_path)
    return tmp_path


def recorded(folder: Path) -> dict[str, str]:
    found: dict[str, str] = yaml.safe_load((folder / "job.yaml").read_text())["plugins"]
    return found


def test_job_yaml_names_the_plugin_of_each_part(begun: Path) -> None:
    found = recorded(begun)
    assert (found["recipe"], found["model"], found["data"]) == ("toy", "toy", "toy")  # not installed
    assert found["layout"].startswith("core, recipe-core ")


def test_a_run_goes_on_as_what_it_was(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = both()
    with pytest.raises(PluginError, match=r"recipe 'toy' is provided by .*; say which one: toy/toy or rival/toy"):
        resolve(registry, "toy")
    own = resolve(registry, begun / "job.yaml", ["train.stop_after=null"])
    assert (own.recipe.name, own.model.spec.name, own.plugins["data"]) == ("toy/toy", "toy/toy_model", "toy")
    capsys.readouterr()
    assert run(own, begun)["step"] == 4
    assert "continuing with other settings" not in capsys.readouterr().out
    assert recorded(begun)["recipe"] == "toy"
    resolve(registry, begun / "job.yaml")  # as it is recorded now


def test_the_other_plugins_recipe_is_another_run(begun: Path) -> None:
    job = resolve(both(), "rival/toy", ["train.device=cpu"])
    assert job.model.spec.name == "rival/toy_model"  # its own, without a prefix
    message = r"holds another run: the plugin of its recipe was 'toy' and is 'rival'; the plugin of its model was 'toy'"
    with pytest.raises(ConfigError, match=message):
        require_same_run(begun, job)


def test_a_record_of_before_goes_on_by_the_full_name(begun: Path) -> None:
    sections = yaml.safe_load((begun / "job.yaml").read_text())
    del sections["plugins"]
    (begun / "job.yaml").write_text(yaml.safe_dump(sections))
    job: Job = resolve(both(), "toy/toy", ["train.device=cpu", "train.steps=4"])
    assert run(job, begun)["step"] == 4
