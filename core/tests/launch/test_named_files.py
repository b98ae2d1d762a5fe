"""The files that settings name, which ranks compare."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recipe_core.launch.identity import files_named, paths_in, texts_of


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


def test_the_texts_of_a_setting_name_what_their_reader_finds(tmp_path: Path) -> None:
    for name in ("a.bin", "a.idx", "b.bin", "c[1].bin"):
        (tmp_path / name).touch()
    names = tmp_path / "list"
    names.write_text("0.3 a\n0.7 b.bin\n")
    assert paths_in([f"@{names}"]) == [names, tmp_path / "a", tmp_path / "b.bin"]
    assert paths_in([f"0.3:{tmp_path}/a", f"0.7:{tmp_path}/*.idx"]) == [tmp_path / "a", tmp_path / "a.idx"]
    assert files_named(paths_in([f"{tmp_path}/c[1]"])) == [tmp_path / "c[1].bin"]
    assert paths_in([f"@{tmp_path}/none"]) == [tmp_path / "none"]


def test_texts_are_found_in_lists_of_settings() -> None:
    settings = {"use": "x", "files": ["a", "b"], "phases": [{"at": 3, "files": ["c"]}, {"at": 4, "files": "d"}]}
    assert dict(texts_of({"data": settings})) == {
        "data.use": ["x"],
        "data.files": ["a", "b"],
        "data.phases[0].files": ["c"],
        "data.phases[1].files": ["d"],
    }
