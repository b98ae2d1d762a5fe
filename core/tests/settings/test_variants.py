"""Variants in YAML files: listed by name, read when they are asked for, and named when they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core import Recipe, Use
from recipe_core.errors import PluginError
from recipe_core.settings.variants import variants_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The folder ``variants`` of a package, whose name is that of the test: modules stay imported."""
    package = tmp_path / request.function.__name__
    (package / "variants").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return package / "variants"


def test_files_are_variants(folder: Path) -> None:
    (folder / "tiny.yaml").write_text("train: {steps: 1}\n")
    (folder / "6.7b.yaml").write_text("extends: tiny\nmodel: {layers: 32}\n")
    (folder / "README.md").write_text("not a variant")
    variants = variants_of(folder.parent.name)
    assert list(variants) == ["6.7b", "tiny"]
    assert len(variants) == 2
    assert dict(variants) == {
        "6.7b": {"extends": "tiny", "model": {"layers": 32}},
        "tiny": {"train": {"steps": 1}},
    }
    assert "small" not in variants
    with pytest.raises(KeyError):
        variants["small"]


def test_a_file_is_read_when_it_is_asked_for(folder: Path) -> None:
    (folder / "damaged.yaml").write_text("train: {")
    (folder / "good.yaml").write_text("train: {steps: 1}\n")
    (folder / "list.yaml").write_text("- 1\n")
    recipe = Recipe(name="r", summary="", model=Use("m"), data=Use("d"), variants=variants_of(folder.parent.name))
    assert "damaged" in recipe.variants
    assert recipe.variants["good"] == {"train": {"steps": 1}}
    with pytest.raises(PluginError, match=r"damaged\.yaml: is not YAML \(while parsing a flow node expected"):
        recipe.variants["damaged"]
    with pytest.raises(PluginError, match=r"list\.yaml: expected sections with settings, got \[1\]"):
        recipe.variants["list"]


def test_a_package_without_the_folder_is_named(folder: Path) -> None:
    folder.rmdir()
    variants = variants_of(folder.parent.name)
    with pytest.raises(PluginError, match=f"no such folder, and '{folder.parent.name}' wants its variants from there"):
        list(variants)
