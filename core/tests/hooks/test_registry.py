"""Plugins: what a good one contributes is found by name; what is wrong with a bad one is said, and no other suffers."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from recipe_core import Layout, Model, NoSettings, hookimpl, plugin
from recipe_core.errors import PluginError
from recipe_core.hooks.registry import Registry, distributions, installed, load


class Good:
    @hookimpl
    def register_models(self) -> Iterable[Model]:
        yield Model(name="gpt", build="good.model:build")
        yield Model(name="bert", build="good.model:build")


def alone(loader: Callable[[], object]) -> str:
    """Messages about a plugin, loaded beside a good one that must not suffer."""
    registry = load([("bad", loader), ("good", Good)])
    assert registry.names("model") == ["bert", "gpt"]
    assert registry.plugins == ["good"]
    assert list(registry.broken) == ["bad"]
    return registry.broken["bad"]


def models(function: Callable[[], Any]) -> Callable[[], object]:
    """Loader of a plugin whose hook for models is ``function``."""
    return lambda: SimpleNamespace(register_models=hookimpl(function))


def nothing() -> list[Model]:
    return []


def raising(error: BaseException) -> Callable[[], object]:
    def raise_it() -> object:
        raise error

    return raise_it


def test_contributions_are_found_by_kind_and_name() -> None:
    registry = load([("core", lambda: plugin), ("good", Good)])
    assert registry.get("model", "gpt").build == "good.model:build"
    assert registry.names("layout") == ["ddp", "fsdp", "pp", "single", "tp", "zero1"]
    assert registry.names("checkpoint") == ["dcp", "hf", "peft", "single"]
    assert registry.names("engine") == ["native"]
    assert registry.plugins == ["core", "good"]
    assert registry.broken == {}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("no module 'neuron'"), r"ImportError: no module 'neuron' \(test_registry.py, line \d+\)"),
        (SystemExit(3), r"SystemExit: 3 \(.*\)"),
        (SyntaxError("bad"), r"SyntaxError: bad \(.*\)"),
        (GeneratorExit(), r"GeneratorExit \(.*\)"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_left_out(error: BaseException, said: str) -> None:
    assert re.fullmatch(said, alone(raising(error)))


def test_ctrl_c_while_a_plugin_is_imported_ends_the_command() -> None:
    with pytest.raises(KeyboardInterrupt):
        load([("slow", raising(KeyboardInterrupt()))])


def test_a_hook_that_fails_on_the_way_contributes_nothing() -> None:
    def half() -> Iterable[Model]:
        yield Model(name="half", build="a:b")
        raise RuntimeError("no licence")

    assert re.fullmatch(r"RuntimeError: no licence \(test_registry.py, line \d+\)", alone(models(half)))


@dataclass
class NotFrozen:
    layers: int = 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "register_models gave back None; expected an iterable of Model"),
        ([5], "register_models gave back 5; expected a Model"),
        ([Layout(name="x", build="a:b")], r"register_models gave back Layout\(name='x', .*; expected a Model"),
        ([Model(name="a:b", build="a:b")], "register_models: the name 'a:b' holds more than letters, digits, .*"),
        ([Model(name="", build="a:b")], "register_models: the name '' holds more than letters, digits, .*"),
        ([Model(name="x", build="a:b", config=dict)], "register_models: config of 'x' is not a frozen dataclass: .*"),
        (
            [Model(name="x", build="a:b", config=NotFrozen)],
            "register_models: config of 'x' is not a frozen dataclass: .*",
        ),
    ],
)
def test_a_hook_that_gives_back_nonsense_is_named(answer: Any, said: str) -> None:
    assert re.fullmatch(said, alone(models(lambda: answer)))


def test_a_hook_of_another_name_is_named() -> None:
    bad = SimpleNamespace(register_model=hookimpl(lambda: nothing()))
    assert alone(lambda: bad) == "there is no hook 'register_model'; did you mean 'register_models'?"


def test_a_hook_that_wants_arguments_is_named() -> None:
    assert "'config'" in alone(models(lambda config: []))  # type: ignore[arg-type, misc]


def test_a_layout_whose_settings_do_not_say_how_it_divides_is_refused() -> None:
    @hookimpl
    def register_layouts() -> list[Layout]:
        return [Layout(name="x", build="a:b", config=NoSettings)]  # type: ignore[arg-type]

    said = f"register_layouts: config of 'x' is no subclass of LayoutSettings: {NoSettings!r}"
    assert alone(lambda: SimpleNamespace(register_layouts=register_layouts)) == said


@pytest.mark.parametrize("thing", [None, SimpleNamespace(), SimpleNamespace(register_models=nothing)])
def test_a_plugin_without_hooks_is_asked_for_hookimpl(thing: object) -> None:
    assert alone(lambda: thing) == "it implements no hook; is @hookimpl missing above register_...?"


def test_what_a_plugin_prints_does_not_get_into_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    def noisy() -> object:
        print("hello from noisy")
        return Good()

    assert load([("noisy", noisy)]).broken == {}
    assert capsys.readouterr() == ("", "hello from noisy\n")


def test_an_unknown_name_gets_the_nearest_and_the_plugins_that_did_not_load() -> None:
    registry = load([("bad", raising(ImportError("no torch"))), ("good", Good)])
    with pytest.raises(PluginError) as caught:
        registry.get("model", "gtp")
    assert str(caught.value) == (
        "no model named 'gtp'; did you mean 'gpt'? (there are: bert, gpt); "
        f"plugin 'bad' did not load and is left out: {registry.broken['bad']}"
    )
    assert registry.broken["bad"].startswith("ImportError: no torch")
    with pytest.raises(PluginError, match=r"^no checkpoint format named 'x' \(there are: none\)"):
        registry.get("checkpoint", "x")


def test_a_recipe_of_this_repository_that_is_not_installed_is_named_with_its_packages() -> None:
    message = re.escape(
        "no recipe named 'bert_tp'; recipe-bert-tp is not installed: python -m pip install ./plugins/bert_dp "
        "./plugins/bert_tp, in a clone of the repository (there are: none)"
    )
    with pytest.raises(PluginError, match=message):
        Registry().get("recipe", "bert_tp")


def test_a_name_of_two_plugins_is_refused_alone_and_taken_with_its_plugin() -> None:
    rival = models(lambda: [Model(name="gpt", build="rival.model:build"), Model(name="t5", build="rival.model:build")])
    registry = load([("good", Good), ("rival", rival)])
    assert registry.get("model", "bert").build == "good.model:build"
    assert registry.get("model", "t5").build == "rival.model:build"
    with pytest.raises(PluginError) as caught:
        registry.get("model", "gpt")
    assert str(caught.value) == (
        "model 'gpt' is provided by plugin 'good' and by plugin 'rival'; say which one: good/gpt or rival/gpt"
    )
    assert registry.conflicts() == [str(caught.value)]
    assert registry.names("model") == ["bert", "good/gpt", "rival/gpt", "t5"]
    for name in ("good/gpt", "rival/gpt"):
        assert registry.get("model", name) == Model(name=name, build=f"{name.partition('/')[0]}.model:build")
    assert registry.get("model", "rival/t5") is registry.get("model", "t5")
    with pytest.raises(PluginError, match=r"^no model named 'good/t5'; did you mean 'good/gpt'\?"):
        registry.get("model", "good/t5")


def test_a_name_of_the_cores_own_stays_the_cores() -> None:
    mine = SimpleNamespace(register_layouts=hookimpl(lambda: [Layout(name="ddp", build="mine.layout:build")]))
    registry = load([("mine", lambda: mine), ("core", lambda: plugin)])
    assert registry.get("layout", "ddp").build == registry.get("layout", "core/ddp").build
    assert registry.get("layout", "ddp").build == "recipe_core.layouts.replicated:ddp"
    assert registry.get("layout", "mine/ddp") == Layout(name="mine/ddp", build="mine.layout:build")
    assert registry.names("layout") == ["ddp", "fsdp", "mine/ddp", "pp", "single", "tp", "zero1"]
    assert registry.conflicts() == []
    assert registry.shadowed() == ["layout 'ddp' is the core's own; that of plugin 'mine' goes by mine/ddp"]


def test_a_plugin_that_gives_one_name_twice_is_left_out() -> None:
    twice = [Model(name="gpt", build="a:b"), Model(name="gpt", build="a:c")]
    assert alone(models(lambda: twice)) == "register_models gave back two named 'gpt'"


def test_one_name_for_two_kinds_is_no_conflict() -> None:
    both = SimpleNamespace(
        register_models=hookimpl(lambda: [Model(name="x", build="a:b")]),
        register_layouts=hookimpl(lambda: [Layout(name="x", build="a:b")]),
    )
    assert load([("both", lambda: both)]).conflicts() == []


def test_code_that_is_not_there_is_named_with_its_owner() -> None:
    model = Model(name="gpt", build="recipe_core.nowhere:build")
    with pytest.raises(PluginError, match=r"^Model 'gpt': 'recipe_core.nowhere:build' cannot be imported \(Module"):
        model.load()
    with pytest.raises(
        PluginError, match=r"^Model 'gpt': 'recipe_core.hooks.specs:nothing' cannot be imported \(Attribute"
    ):
        Model(name="gpt", build="recipe_core.hooks.specs:nothing").load()
    assert Model(name="gpt", build="recipe_core.hooks.specs:NoSettings").load() is NoSettings


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three installed plugins: the core's own, one that is fine, one that is broken."""
    group = "recipe.plugins"
    points = [
        importlib.metadata.EntryPoint("zeta", "fake_zeta", group),
        importlib.metadata.EntryPoint("broken", "recipe_core.nowhere", group),
        importlib.metadata.EntryPoint("core", "recipe_core.plugin", group),
    ]
    monkeypatch.setitem(sys.modules, "fake_zeta", Good())  # type: ignore[arg-type]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: importlib.metadata.EntryPoints(points))
    monkeypatch.delenv("RECIPE_PLUGINS", raising=False)


def loaded(monkeypatch: pytest.MonkeyPatch, only: str | None = None) -> Registry:
    if only is not None:
        monkeypatch.setenv("RECIPE_PLUGINS", only)
    return load()


@pytest.mark.usefixtures("entry_points")
def test_installed_plugins_are_found_the_core_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [name for name, _ in installed()] == ["core", "broken", "zeta"]
    registry = loaded(monkeypatch)
    assert registry.plugins == ["core", "zeta"]
    assert list(registry.broken) == ["broken"]


def test_a_plugin_that_calls_itself_core_is_not_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint("core", "another.plugin", "recipe.plugins"),
        importlib.metadata.EntryPoint("core", "recipe_core.plugin", "recipe.plugins"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: importlib.metadata.EntryPoints(points))
    assert [name for name, _ in installed()] == ["core", "another.plugin"]


@pytest.mark.usefixtures("entry_points")
def test_the_environment_restricts_plugins_but_not_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(monkeypatch, "zeta").plugins == ["core", "zeta"]
    assert loaded(monkeypatch, "").plugins == ["core"]
    registry = loaded(monkeypatch, " zeta , zata")
    assert registry.plugins == ["core", "zeta"]
    assert registry.broken == {
        "zata": "RECIPE_PLUGINS names it, and it is not installed (installed: core, broken, zeta)"
    }


def test_distributions_name_what_brought_a_plugin() -> None:
    assert distributions()["core"] == f"recipe-core {importlib.metadata.version('recipe-core')}"


def test_the_plugin_of_a_recipe_comes_first_among_those_with_one_name() -> None:
    rival = models(lambda: [Model(name="gpt", build="rival.model:build")])
    registry = load([("good", Good), ("rival", rival)])
    assert registry.get("model", "gpt", "rival").build == "rival.model:build"
    assert registry.get("model", "gpt", "good").build == "good.model:build"
    assert registry.get("model", "bert", "rival").build == "good.model:build"
    with pytest.raises(PluginError, match="say which one: good/gpt or rival/gpt"):
        registry.get("model", "gpt", "another")
    assert (registry.owner("model", "rival/gpt"), registry.owner("model", "bert")) == ("rival", "good")
    assert registry.owner("model", "gpt") == ""
