"""What the distributions of this workspace promise each other."""

from __future__ import annotations

import re
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = sorted(d.name for d in distributions() if d.name.startswith("recipe-"))
FOLDERS = sorted(path.parent for pattern in ("*", "plugins/*") for path in ROOT.glob(f"{pattern}/pyproject.toml"))


def normal(requirement: str) -> str:
    """The name in a requirement, as package registries compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def test_all_distributions_are_installed() -> None:
    names = {re.search(r'^name = "(.+)"', (f / "pyproject.toml").read_text(), re.MULTILINE)[1] for f in FOLDERS}  # type: ignore[index]
    assert names <= set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_every_dependency_has_a_tested_version(name: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line) for line in lines if line and not line.startswith("#")}
    (found,) = (d for d in distributions() if d.name == name)
    asked = {normal(line) for line in found.requires or () if "extra ==" not in line}
    assert asked - pinned - set(OURS) == set()


def test_no_test_is_dropped_in_silence() -> None:
    """pytest's importlib mode keeps one of two test files of one name where their folders are packages."""
    folders = [ROOT / "tests", *(folder / "tests" for folder in FOLDERS)]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    names = Counter(path.name for path in files if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
    assert [path for path in files if path.name == "__init__.py"] == []
