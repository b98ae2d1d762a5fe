"""What several tests of the core start from."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipe_core.engine import stack


@pytest.fixture
def bare_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages before all others: for the stack, nothing else is installed, and the machine is unknown."""
    folder = tmp_path / "site"
    folder.mkdir()

    def distribution(name: str) -> metadata.Distribution:
        for found in metadata.distributions(name=name, path=[str(folder)]):
            return found
        raise metadata.PackageNotFoundError(name)

    names = {"distribution": distribution, "PackageNotFoundError": metadata.PackageNotFoundError}
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(stack, "metadata", SimpleNamespace(**names))
    monkeypatch.setattr(stack, "_PRODUCT", tmp_path / "product")
    return folder
