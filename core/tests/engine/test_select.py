"""A message names an accelerator of this machine whose engine is not installed, and what to install."""

from __future__ import annotations

import pytest

from recipe_core.engine import select
from recipe_core.engine.select import engine_problems
from recipe_core.errors import ConfigError
from recipe_core.settings.job import resolve
from recipe_core.testing import toy


def problems(*words: str) -> list[str]:
    job = resolve(toy.registry(), "toy", words)
    return list(engine_problems(job.engine, job.train, job.layout))


@pytest.mark.parametrize(
    ("installed", "named", "expected"),
    [
        ({"torch_xla"}, "NEURON", "the environment says PJRT_DEVICE=NEURON, and the plugin recipe-xla"),
        ({"torch_xla"}, "TPU", "the environment says PJRT_DEVICE=TPU, and the plugin recipe-xla"),
        ({"torch_xla", "libneuronxla"}, None, "this machine has Neuron over PyTorch/XLA, and the plugin recipe-xla"),
        ({"torch_xla"}, "CPU", None),
        ({"torch_xla"}, None, None),
        ({"libneuronxla"}, "NEURON", None),
        ({"torch_xla", "libneuronxla", "recipe_xla"}, "NEURON", None),
    ],
)
def test_an_accelerator_whose_plugin_is_missing(
    installed: set[str], named: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    if named is not None:
        monkeypatch.setenv("PJRT_DEVICE", named)
    if expected is None:
        assert problems() == []
    else:
        (problem,) = problems()
        assert problem.startswith(expected)
        assert problem.endswith("pip install 'recipe-xla[runtime]', or take train.device=cpu")
    assert problems("train.device=cpu") == []


def test_a_device_of_an_engine_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "find_spec", lambda name: None)
    assert problems("train.device=xla")[0].startswith("train.device: xla, and the plugin recipe-xla")


@pytest.mark.parametrize("words", ["train.engine=xla", "engine=xla"])
def test_an_engine_that_is_not_installed(words: str) -> None:
    message = (
        r"^engine: no engine named 'xla' \(there are: native\); install the plugin that has it "
        r"\(pip install recipe-xla\), or take engine=native$"
    )
    with pytest.raises(ConfigError, match=message):
        problems(words)


def test_a_mistyped_engine_is_not_to_be_installed() -> None:
    with pytest.raises(ConfigError, match=r"no engine named 'natve'; did you mean 'native'\? \(there are: native\)$"):
        problems("engine=natve")
