"""A server of objects for each test, with the variables of the environment that lead to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recipe_core.testing.objects import ObjectServer, reach_objects


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with reach_objects(monkeypatch, page=3) as served:
        yield served
