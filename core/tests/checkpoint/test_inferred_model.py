"""The model of a folder that records none: read by one plugin, by several, or refused by some."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core import Adapter, CheckpointError, Model, Naming, hookimpl, plugin, read_hf_config
from recipe_core.checkpoint.formats.hf import Hf
from recipe_core.checkpoint.locate import find
from recipe_core.checkpoint.match.provenance import Provenance, provenance_of
from recipe_core.hooks.registry import load
from recipe_core.testing import toy

READERS: dict[str, tuple[str, ...]] = {"oak": ("oak",), "tree": ("oak", "ash"), "bush": ("ash", "yew")}
"""Models, and the types of models that they read."""


class Wood(Naming):
    """Reads the types of the subclass's model, without a bark."""

    model = ""

    def adapter(self, config: Any) -> Adapter:
        return Adapter()

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> dict[str, Any] | None:
        config = read_hf_config(files) or {}
        if config.get("model_type") not in READERS[self.model]:
            return None
        if config.get("bark") == self.model:
            raise CheckpointError(f"{self.model} has no bark")
        return {"hidden": 4}


class Oak(Wood):
    model = "oak"


class Tree(Wood):
    model = "tree"


class Bush(Wood):
    model = "bush"


@hookimpl
def register_models() -> Iterable[Model]:
    for model in toy.register_models():
        for name in READERS:
            yield replace(model, name=name, adapters={"hf": f"{__name__}:{name.title()}"})


def inferred(folder: Path, **config: str) -> Provenance:
    folder.mkdir()
    files = {"config.json": json.dumps(config)}
    Hf().save(folder, {"model": {"weight": torch.zeros(2)}, "files": files})
    registry = load([("core", lambda: plugin), ("wood", lambda: sys.modules[__name__])])
    source = find(registry, folder, None)
    return provenance_of(registry, source, source.weights)


def test_of_several_the_one_with_the_familys_name(tmp_path: Path) -> None:
    found = inferred(tmp_path / "oak", model_type="oak").model
    assert found is not None
    assert found.spec.name == "oak"
    several = inferred(tmp_path / "ash", model_type="ash")
    assert (several.model, several.unknown) == (None, "several models read it (bush, tree)")


def test_one_that_refuses_it_leaves_it_to_another(tmp_path: Path) -> None:
    found = inferred(tmp_path / "ash", model_type="ash", bark="bush").model
    assert found is not None
    assert found.spec.name == "tree"
    with pytest.raises(CheckpointError, match=r"yew: bush has no bark$"):
        inferred(tmp_path / "yew", model_type="yew", bark="bush")
