"""The files that settings name, which ranks compare."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recipe_core.launch.identity import files_named


def test_a_path_names_itself_the_entries_of_a_folder_or_what_it_begins(tmp_path: Path) -> None:
    for name in ("wiki.bin", "wiki.idx", "wiki-2.bin", "wikis", ".hidden"):
        (tmp_path / name).touch()
    assert files_named([tmp_path / "wikis", tmp_path / "wiki", tmp_path / "nothing", tmp_path / "nowhere/wiki"]) == [
        tmp_path / "wikis",
        tmp_path / "wiki.bin",
        tmp_path / "wiki.idx",
    ]
    assert files_named([tmp_path]) == [tmp_path / name for name in ("wiki-2.bin", "wiki.bin", "wiki.idx", "wikis")]


def test_a_name_is_not_a_pattern(tmp_path: Path) -> None:
    for name in ("a[1].bin", "a1.bin"):
        (tmp_path / name).touch()
    assert files_named([tmp_path / "a[1]"]) == [tmp_path / "a[1].bin"]
    assert files_named([tmp_path / "a*"]) == []


def test_a_folder_is_listed_once_for_all_sets_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"shard-{number:04}" for number in range(500)]
    for path in paths:
        path.with_suffix(".bin").touch()
    listed = []
    list_of = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: listed.append(folder) or list_of(folder))
    assert files_named(paths) == [path.with_suffix(".bin") for path in paths]
    assert listed == [tmp_path]
