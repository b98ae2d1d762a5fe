"""A plugin made for a newer version of the interface is named in one sentence, and all others work."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from recipe_core.hooks import version
from recipe_core.hooks.markers import GROUP
from recipe_core.hooks.registry import Registry, load

TOO_NEW = (
    "it is made for API 2, and this recipe-core has API 1; upgrade recipe-core (python -m pip install --upgrade "
    "recipe-core), or install an earlier release of the plugin"
)
GOOD = """\
from recipe_core import Model, hookimpl

@hookimpl
def register_models():
    yield Model(name={name!r}, build="nowhere:build", summary="a model")
"""


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> Registry:
    """Everything that is found where plugins with these sources are installed."""
    for name, source in sources.items():
        (folder / f"{name}_of_this_test.py").write_text(source, encoding="utf-8")
        sys.modules.pop(f"{name}_of_this_test", None)
    points = [importlib.metadata.EntryPoint(name, f"{name}_of_this_test", GROUP) for name in sources]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: importlib.metadata.EntryPoints(points))
    monkeypatch.syspath_prepend(folder)
    return load()


@pytest.mark.parametrize(
    "source",
    [
        "API = 2\n" + GOOD.format(name="flux"),
        "from recipe_core import Flux, hookimpl\n\nAPI = 2\n",
        "from recipe_core import Model, hookimpl\nAPI = 2\n@hookimpl\ndef register_fluxes():\n    return ()\n",
        "from recipe_core import Model\nAPI = 2\nModel(name='a', build='b:c', flux=1)\n",
    ],
    ids=["as it is", "a name that is not there", "a hook that is not there", "a field that is not there"],
)
def test_a_newer_plugin_is_left_out(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = installed(tmp_path, monkeypatch, good=GOOD.format(name="fine"), newer=source)
    assert registry.broken == {"newer": TOO_NEW}
    assert registry.names("model") == ["fine"]


def test_a_plugin_for_an_earlier_version_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is gone fails as any import does, as docs/how-to/plugins/write-a-plugin.md says."""
    monkeypatch.setattr(version, "API", 2)
    sources = {"one": GOOD.format(name="one"), "two": "API = 1\n" + GOOD.format(name="two")}
    gone = "from recipe_core import Flux, hookimpl\n\nAPI = 1\n"
    registry = installed(tmp_path, monkeypatch, **sources, gone=gone)
    assert registry.names("model") == ["one", "two"]
    assert list(registry.broken) == ["gone"]
    assert registry.broken["gone"].startswith("ImportError: cannot import name 'Flux' from 'recipe_core'")


def test_a_plugin_says_its_version_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = GOOD.format(name="one"), "API = 1\n" + GOOD.format(name="two")
    registry = installed(tmp_path, monkeypatch, one=one, two=two)
    assert (registry.broken, registry.names("model")) == ({}, ["one", "two"])


@pytest.mark.parametrize("version", ["'1'", "True", "0", "1.5", "None"])
def test_what_is_no_version_is_named(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = installed(tmp_path, monkeypatch, odd=f"API = {version}\n" + GOOD.format(name="odd"))
    assert registry.broken["odd"].startswith(f"API = {version} is no version of the interface of plugins")


def test_another_mistake_of_import_keeps_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = installed(tmp_path, monkeypatch, bad="API = 1\nfrom recipe_core import Flux\n", worse="API = = 2\n")
    assert registry.broken["bad"].startswith("ImportError: cannot import name 'Flux' from 'recipe_core'")
    assert registry.broken["worse"].startswith("SyntaxError")
