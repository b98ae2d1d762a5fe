"""Hashes of inputs that are made while others read them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from recipe_core.data.prepare import hashed, input_facts
from recipe_core.errors import DataError


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("one", "two", "empty")]
    for path, data in zip(found, (b"1" * 3_000_000, b"2", b""), strict=True):
        path.write_bytes(data)
    return found


def test_an_entry_for_each_input_in_their_order(paths: list[Path]) -> None:
    expected = [
        {"path": str(p), "bytes": len(data := p.read_bytes()), "sha256": hashlib.sha256(data).hexdigest()}
        for p in paths
    ]
    assert hashed(input_facts(paths))() == expected
    assert hashed([])() == []


@pytest.mark.parametrize("what", ["time", "size", "gone", "folder"])
def test_an_input_that_changes_is_named(paths: list[Path], what: str) -> None:
    entries = hashed(input_facts(paths))
    if what == "time":
        os.utime(paths[1], ns=(0, 0))
    elif what == "size":
        with paths[1].open("ab") as file:
            file.write(b"more")
    else:
        paths[1].unlink()
        if what == "folder":
            paths[1].mkdir()
    with pytest.raises(DataError, match=f"^{paths[1]}: changed while it was read; prepare it again$"):
        entries()


def test_an_input_that_cannot_be_read_is_named(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("recipe_core.data.prepare.inputs.digest", refuse)
    with pytest.raises(DataError, match=f"^{paths[0]}: cannot be read \\(Input/output error\\)$"):
        hashed(input_facts(paths))()
