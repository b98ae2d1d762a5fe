"""Fixtures of this plugin's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.testing import packages


@pytest.fixture
def bare_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages before all others: for the stack, nothing else is installed, and the machine is unknown."""
    return packages.bare_site(tmp_path, monkeypatch)
