"""The distributions of this workspace and the packages that they declare."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nox.project import load_toml

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
CONSTRAINTS = ROOT / "constraints.txt"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The version that runs nox."""
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
FOLDERS = [*sorted(path.parent for path in ROOT.glob("*/pyproject.toml")), *PLUGINS]
EXAMPLES = sorted(path.parent for path in ROOT.glob("docs/examples/*/pyproject.toml"))
TABLES: dict[Path, dict[str, Any]] = {folder: load_toml(folder / "pyproject.toml") for folder in (*FOLDERS, *EXAMPLES)}
PROJECTS: dict[Path, dict[str, Any]] = {folder: table["project"] for folder, table in TABLES.items()}


def normal(requirement: str) -> str:
    """Return the name in a requirement as package registries compare it: ``Recipe_Core==0.1`` gives ``recipe-core``."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


LOCAL = {normal(project["name"]): folder for folder, project in PROJECTS.items()}
"""Folders by the names of their distributions."""


def needed(folder: Path) -> list[Path]:
    """Return ``folder`` and the distributions of this workspace that it or its tests declare, also through another."""
    found = [folder]
    for asking in found:  # grows while it is walked
        tests = TABLES[asking].get("dependency-groups", {}).get("test", []) if asking == folder else []
        names = map(normal, [*PROJECTS[asking]["dependencies"], *tests])
        found += [LOCAL[name] for name in names if name in LOCAL and LOCAL[name] not in found]
    return found


def tested_with(folder: Path) -> list[str]:
    """Return the packages from elsewhere that the tests of ``folder`` need beside those of the distribution."""
    return [line for line in TABLES[folder].get("dependency-groups", {}).get("test", []) if normal(line) not in LOCAL]


def foreign(folders: Collection[Path], without: Collection[str] = (), *, extras: bool = False) -> list[str]:
    """Return the packages from elsewhere that ``folders`` declare; with ``extras``, those of their extras too."""
    declared = {line for folder in folders for line in PROJECTS[folder]["dependencies"]}
    for folder in folders if extras else ():
        declared.update(*PROJECTS[folder].get("optional-dependencies", {}).values())
    return sorted(line for line in declared if normal(line) not in {*LOCAL, *without})


def tests_of(*folders: Path) -> list[Path]:
    """Return the folders of tests of ``folders``."""
    return [folder / "tests" for folder in folders]
