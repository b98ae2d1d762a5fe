"""A server of objects for each test, with the variables of the environment that lead to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recipe_core.files.objects import retries
from recipe_core.testing.objects import ObjectServer, serve_objects


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with serve_objects(page=3) as served:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(retries, "_WAIT", 0.001)
        monkeypatch.setattr(retries, "_answered", set())
        monkeypatch.setattr(retries, "_unreachable", set())
        yield served
