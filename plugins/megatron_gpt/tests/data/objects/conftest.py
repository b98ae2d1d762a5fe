"""A server of objects that holds token files, and the same files on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from recipe_core.testing.objects import ObjectServer, reach_objects
from recipe_megatron_gpt.data.indexed import IndexedWriter


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with reach_objects(monkeypatch) as served:
        yield served


class TokenSets:
    """Writes token files of random documents to a folder, and puts them on the server under ``data/``."""

    def __init__(self, folder: Path, server: ObjectServer) -> None:
        self.folder, self.server = folder, server

    def write(self, name: str, sizes: Sequence[int], seed: int = 0, dtype: str = "uint16") -> Path:
        chance, prefix = np.random.default_rng(seed), self.folder / name
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with IndexedWriter(prefix, dtype) as writer:
            writer.add_documents(chance.integers(0, 512, sum(sizes)), sizes)
        for ending in (".bin", ".idx"):
            self.put(f"{name}{ending}")
        return prefix

    def put(self, name: str) -> None:
        self.server.put(f"data/{name}", (self.folder / name).read_bytes())


@pytest.fixture
def sets(tmp_path: Path, server: ObjectServer) -> TokenSets:
    return TokenSets(tmp_path / "data", server)
