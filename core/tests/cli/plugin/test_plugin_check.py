"""``recipe plugin check``: problems of a plugin are reported, and the exit code is 2."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import Dataset, LayoutSettings, Model, ModelFacts, Recipe, Stages
from recipe_core.data.prepare import Inspection
from recipe_core.errors import ConfigError
from recipe_core.hooks.specs import CheckpointFormat, Layout
from recipe_core.layouts.parallel import Batch
from recipe_core.testing import command, toy
from recipe_core.testing.conformance.examine import examine
from recipe_core.testing.conformance.outcome import FailedCheck, Outcome, outcome
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.testing.packages import install_plugin
from recipe_core.testing.toy_parts import Vectors, build_model
from recipe_core.train.start.check import checked_job

HERE = "plugin_check_parts"
TRACEBACK = 'Traceback (most recent call last):\n  File "model.py", line 3, in loss\n    batch["labels"]'
(MODEL,) = toy.register_models()
(DATA,) = toy.register_datasets()
(RECIPE,) = toy.register_recipes()
HOOKS: dict[type, tuple[str, list[Any]]] = {
    Model: ("register_models", [MODEL]),
    Dataset: ("register_datasets", [DATA]),
    Recipe: ("register_recipes", [RECIPE]),
    Layout: ("register_layouts", []),
}


def too_few(config: toy.ToyModel, sequence: int) -> ModelFacts:
    return dataclasses.replace(toy.model_facts(config, sequence), parameters=5)


def half(config: toy.ToyModel, sequence: int) -> ModelFacts:
    return dataclasses.replace(toy.model_facts(config, sequence), activation_values=7)


def plan(config: toy.ToyModel) -> Mapping[str, str]:
    return {"layers.0": "column"}


def bare_loss(config: toy.ToyModel) -> tuple[nn.Module, Any]:
    return build_model(config)[0], lambda output, batch: {"accuracy": output.mean()}


class Idle(nn.Module):
    def __init__(self, config: toy.ToyModel) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, batch: Batch) -> Tensor:
        scores: Tensor = self.used(batch["vectors"])
        return scores


def idle(config: toy.ToyModel) -> tuple[nn.Module, Any]:
    return Idle(config), lambda output, batch: {"loss": F.cross_entropy(output, batch["labels"])}


class ByRank(Vectors):
    """Samples depend on the number of earlier reads."""

    reads = 0

    def read(self, split: str, start: int, count: int) -> Batch:
        self.reads += 1
        batch = super().read(split, start, count)
        return {**batch, "vectors": batch["vectors"] + self.reads}


def by_rank(config: toy.ToyData, run: Any) -> ByRank:
    return ByRank(config)


@dataclasses.dataclass(frozen=True)
class PrepareZeros:
    output: str = ""
    drifts: bool = False
    checked: bool = True


def prepare(settings: PrepareZeros) -> dict[str, Any]:
    path = Path(settings.output) / f"{'checked' if settings.checked else 'trusted'}.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(8) + (path.parent.name.encode() if settings.drifts else b""))
    return {}


class ZeroFiles:
    def detect(self, path: Path) -> bool:
        return any(path.glob("*.bin"))

    def inspect(self, path: Path, tokenizer: Path | None) -> Inspection:
        return Inspection(kind="zeros", facts=())

    def verify(self, path: Path) -> list[str]:
        checked = path / "checked.bin"
        return ["checked.bin: not zero"] if checked.exists() and checked.read_bytes().strip(b"\0") else []


def drifting_example(folder: Path) -> dict[str, Any]:
    return {"drifts": True}


def trusting_example(folder: Path) -> dict[str, Any]:
    return {"checked": False}


def good_example(folder: Path) -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True)
class NoData(LayoutSettings):
    def axes(self, world_size: int) -> dict[str, int]:
        return {"tp": world_size}


def outcomes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: str, *parts: Any) -> list[Outcome]:
    """The outcomes of one check of a plugin that contributes ``parts``, and those of the toy of other kinds."""
    module = ModuleType("plugin_of_a_test")
    hooks = {
        Model: "register_models",
        Dataset: "register_datasets",
        Recipe: "register_recipes",
        Layout: "register_layouts",
    }
    for kind, hook in hooks.items():
        items = [part for part in parts if isinstance(part, kind)]
        usual = {Model: [MODEL], Dataset: [DATA], Recipe: [RECIPE]}.get(kind, [])
        setattr(module, hook, _hook(hook, items or usual))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    from recipe_core import plugin
    from recipe_core.hooks.registry import load

    registry = load([("core", lambda: plugin), ("broken", lambda: module)])
    assert not registry.broken
    return list(examine(Plugin("broken", module.__name__, registry, tmp_path), [check]))


def _hook(name: str, items: list[Any]) -> Any:
    from recipe_core import hookimpl

    def hook() -> list[Any]:
        return items

    hook.__name__ = name
    return hookimpl(hook)


PREPARES = dataclasses.replace(
    DATA,
    prepare=f"{HERE}:prepare",
    prepare_config=PrepareZeros,
    prepare_example=f"{HERE}:good_example",
    files=f"{HERE}:ZeroFiles",
)


@pytest.mark.parametrize(
    ("check", "part", "text"),
    [
        ("facts", dataclasses.replace(MODEL, facts=f"{HERE}:too_few"), "74 trainable parameters, and facts say 5"),
        ("facts", dataclasses.replace(MODEL, blocks="blocks.*"), "'blocks.*' matches no submodule of Toy"),
        ("activations", dataclasses.replace(MODEL, facts=f"{HERE}:half"), "activation_values: 7 for a sample, and"),
        ("tensor plan", dataclasses.replace(MODEL, plan=f"{HERE}:plan"), "no role for what holds layers.1"),
        ("stages", dataclasses.replace(MODEL, stages=Stages(first=("embed",), last=())), "it has no such submodule"),
        ("documents", dataclasses.replace(MODEL, document_mask=True), "the batches of its recipe have no tokens"),
        ("initial values", dataclasses.replace(MODEL, deferred=True), "Toy has no method initial_value"),
        (
            "loss",
            dataclasses.replace(MODEL, build=f"{HERE}:bare_loss"),
            "expected a dict with 'loss'",
        ),
        ("loss", dataclasses.replace(MODEL, build=f"{HERE}:idle"), "unused.weight, unused.bias takes no part in the"),
        (
            "loss",
            dataclasses.replace(MODEL, outputs=("scores", "hidden")),
            "declares the outputs scores, hidden, and its output is a tensor, which has one name; fix the plugin",
        ),
        ("same samples", dataclasses.replace(DATA, build=f"{HERE}:by_rank"), "differs between 1 and 2 ranks"),
        ("any order", dataclasses.replace(DATA, build=f"{HERE}:by_rank"), None),
        ("same samples", dataclasses.replace(DATA, gives=("tokens",)), "toy_data promises tokens (gives)"),
        (
            "prepare",
            dataclasses.replace(PREPARES, prepare_example=f"{HERE}:drifting_example"),
            "other bytes the second time",
        ),
        (
            "prepare",
            dataclasses.replace(PREPARES, prepare_example=f"{HERE}:trusting_example"),
            "nothing wrong after a byte",
        ),
        ("mesh", Layout(name="odd", build="math:sqrt", config=NoData, summary="odd"), "with 'dp'"),
        ("targets", dataclasses.replace(MODEL, build="recipe_core.nowhere:build"), "recipe_core.nowhere"),
        ("name and summary", dataclasses.replace(MODEL, summary=""), "expected one line for `recipe ls`"),
        ("variants", dataclasses.replace(RECIPE, variants={}), "there is no 'tiny'"),
    ],
)
def test_a_mistake_is_named(
    check: str, part: Any, text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = [one for one in outcomes(monkeypatch, tmp_path, check, part) if one.state == "failed"]
    assert [text in one.text for one in failed] == ([True] if text else []), failed


@pytest.mark.timeout(600)
def test_mistakes_of_callbacks_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    checks = ("targets", "settings", "steps alike", "same after a stop")
    plugin = Plugin("faulty", "faulty_callbacks", toy.registry(), tmp_path)
    bad = {(one.subject, one.check): one for one in examine(plugin, checks) if one.state != "passed"}
    texts = {
        ("callback own", "steps alike"): "off that of one process after four steps",
        ("callback forgetful", "same after a stop"): "differs after a stop; keep what the next step needs in its state",
        ("callback picky", "steps alike"): "cannot have it: callback.picky: it needs train.precision=bf16",
        ("callback picky", "same after a stop"): "cannot have it: callback.picky: it needs train.precision=bf16",
    }
    assert bad.keys() == texts.keys(), bad
    assert [text in bad[case].text for case, text in texts.items()] == [True] * len(texts), bad
    assert {subject for (subject, _), one in bad.items() if one.state == "skipped"} == {"callback picky"}


@pytest.mark.timeout(600)
def test_mistakes_of_evaluations_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    plugin = Plugin("faulty", "faulty_evaluations", toy.registry(), tmp_path)
    checks = ("targets", "settings", "changes nothing", "same numbers")
    found = {(one.subject, one.check): one for one in examine(plugin, checks) if one.state != "passed"}
    texts = {
        ("evaluation moves", "changes nothing"): "leave weights, buffers and other state of the model as they are",
        ("evaluation partial", "same numbers"): "partial/ranks is 2.0, and 1.0 in one; share work with model.map",
        ("evaluation picky", "changes nothing"): "cannot have it: evaluation.picky: it needs train.precision=bf16",
        ("evaluation picky", "same numbers"): "cannot have it: evaluation.picky: it needs train.precision=bf16",
    }
    assert found.keys() == texts.keys(), found
    assert [text in found[case].text for case, text in texts.items()] == [True] * len(texts), found
    assert {subject for (subject, _), one in found.items() if one.state == "skipped"} == {"evaluation picky"}


@pytest.mark.parametrize("check", ["facts", "loss", "activations", "same samples", "any order", "prepare", "variants"])
def test_the_toy_passes(check: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = outcomes(monkeypatch, tmp_path, check, PREPARES)
    assert [one.state for one in found] == ["passed"], found


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (AssertionError("log\nrecipe run: no space left\n"), "log\nrecipe run: no space left"),
        (AssertionError(f"rank 1: {TRACEBACK}\nKeyError: 'labels'\n"), "KeyError: 'labels'"),
        (AssertionError(f"{TRACEBACK}\nrecipe_core.a.FailedCheck: layout=pp: lost\n"), "layout=pp: lost"),
        (FailedCheck("fix it"), "fix it"),
    ],
)
def test_a_failure_shows_its_reason_and_no_traceback(raised: Exception, text: str) -> None:
    def fail() -> str:
        raise raised

    assert outcome("model gpt", "loss", fail).text == text


def test_a_run_cannot_save_what_the_trainer_of_another_recipe_writes() -> None:
    form = CheckpointFormat(name="theirs", build="recipe_core.checkpoint.formats.single:Single", runs="their_recipe")
    module = ModuleType("format_of_a_test")
    setattr(module, "register_checkpoint_formats", _hook("register_checkpoint_formats", [form]))  # noqa: B010
    with pytest.raises(ConfigError, match="theirs is what the trainer of the recipe their_recipe writes"):
        checked_job(toy.registry(module), "toy:tiny", ["checkpoint=theirs"])


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with a plugin ``lame``, whose module cannot be imported."""
    folder = tmp_path / "site"
    install_plugin(folder, "lame", "recipe_lame", distribution="recipe-lame")
    (folder / "recipe_lame.py").write_text("import nothing_of_this_name\n")
    return folder


def only(site: Path) -> dict[str, str]:
    """An environment with ``lame`` as the only plugin besides the core."""
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "RECIPE_PLUGINS": "lame"}


@pytest.mark.parametrize("arguments", [["lame"], ["recipe-lame"], []])
def test_a_plugin_that_does_not_load(arguments: list[str], site: Path) -> None:
    done = command("plugin", "check", *arguments, **only(site))
    assert done.returncode == 2
    assert "failed   loads             ModuleNotFoundError: No module named" in done.stdout
    assert "0 passed, 1 failed, 0 skipped" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_plugin_that_is_not_installed(site: Path) -> None:
    done = command("plugin", "check", "lam", **only(site))
    assert done.returncode == 2
    assert "no plugin 'lam' is installed; did you mean 'lame'?" in done.stdout
