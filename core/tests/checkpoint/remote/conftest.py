"""A server of object storage, and machines on which the toy is trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from remote_runs import Machine

from recipe_core.testing.objects import ObjectServer, serve_objects
from recipe_core.testing.packages import install_plugin


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    """An S3 server with one bucket; its lists have pages of 3."""
    pytest.importorskip("obstore", reason="runs in object storage need obstore")
    with serve_objects(page=3) as started:
        yield started


@pytest.fixture
def machines(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Machine]:  # fmt: skip
    """Machines by name, which share the server; the toy is the only plugin."""
    packages = tmp_path / "packages"
    install_plugin(packages, "toy", "recipe_core.testing.toy")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
    monkeypatch.setenv("RECIPE_PLUGINS", "toy")
    monkeypatch.chdir(tmp_path)
    return lambda name: Machine(server, tmp_path / name)


@pytest.fixture
def here(machines: Callable[[str], Machine]) -> Machine:
    """A machine."""
    return machines("here")
