"""Variants of a recipe as YAML files of its plugin: ``variants/tiny.yaml`` is the variant ``tiny``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from recipe_core.errors import PluginError
from recipe_core.files.documents import parse_yaml

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:  # removed in 3.14
        from importlib.abc import Traversable

ENDING = ".yaml"


def variants_of(package: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the variants in the folder ``variants`` of ``package``; each YAML file is read at its first use."""
    return _Variants(package)


class _Variants(Mapping[str, Mapping[str, Any]]):
    """Variants by name; a file is read at its first use, since ``recipe ls`` needs only the names."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._read: dict[str, Mapping[str, Any]] = {}

    @cached_property
    def _files(self) -> dict[str, Traversable]:
        folder = files(self._package).joinpath("variants")
        if not folder.is_dir():
            raise PluginError(f"{folder}: no such folder, and {self._package!r} wants its variants from there")
        variants = {item.name.removesuffix(ENDING): item for item in folder.iterdir() if item.name.endswith(ENDING)}
        return dict(sorted(variants.items()))

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self._read:
            self._read[name] = _load(self._files[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:  # Mapping's would read the file
        return name in self._files

    def __repr__(self) -> str:
        return f"variants_of({self._package!r})"


def _load(file: Traversable) -> Mapping[str, Any]:
    try:
        sections = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PluginError(f"{file}: is not YAML ({error})") from error
    if not isinstance(sections, Mapping):
        raise PluginError(f"{file}: expected sections with settings, got {sections!r}")
    return sections
