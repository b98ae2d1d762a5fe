"""Imitations of installed packages for tests."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recipe_core.engine.machine import packages


def bare_site(folder: Path, monkeypatch: Any) -> Path:
    """Create a folder of packages at the start of ``sys.path``; the machine's name is read from ``folder / "product"``.

    Args:
        folder: parent of the new folder.
        monkeypatch: pytest's fixture. Until it ends, :mod:`recipe_core.engine.machine.packages` finds no other package.
    """
    site = folder / "site"
    site.mkdir()

    def distribution(name: str) -> metadata.Distribution:
        for installed in metadata.distributions(name=name, path=[str(site)]):
            return installed
        raise metadata.PackageNotFoundError(name)

    names = {"distribution": distribution, "PackageNotFoundError": metadata.PackageNotFoundError}
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(packages, "metadata", SimpleNamespace(**names))
    monkeypatch.setattr(packages, "_PRODUCT", folder / "product")
    return site


def install(site: Path, name: str, version: str, size: int | None = None) -> None:
    """Install an imitation of the package ``name`` in ``site``: a compiled module, or ``size`` bytes of Python."""
    module = name.replace("-", "_")
    info = _metadata(site, name, version)
    code = f"{module}.so" if size is None else f"{module}.py"
    (site / code).write_text("#" * (size or 0))
    (info / "RECORD").write_text(f"{code},,\n")


def install_plugin(site: Path, name: str, module: str, *, distribution: str = "", version: str = "1") -> None:
    """Register ``module``, which the caller writes, as the plugin ``name`` of a distribution in ``site``.

    Args:
        distribution: its name (default: the plugin's).
    """
    info = _metadata(site, distribution or name, version)
    (info / "entry_points.txt").write_text(f"[recipe.plugins]\n{name} = {module}\n")


def _metadata(site: Path, name: str, version: str) -> Path:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info
