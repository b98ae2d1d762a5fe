"""Addresses of something remote are refused wherever a path is taken, and nothing of such a name is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from recipe_core.data.prepare import Output
from recipe_core.errors import ConfigError, DataError
from recipe_core.files import atomic_folder, home, remote, write_text
from recipe_core.files.named import read_lists, split_weights
from recipe_core.settings.fill import fill
from recipe_core.train.start.destination import require_run_folder


@pytest.mark.parametrize("place", ["s3://b/x", "gs://b", "hf://a/b", "https://h/x", "s3a://b/x", "0.5:s3://b/x"])
def test_what_is_remote(place: str) -> None:
    assert "neither read nor written" in str(remote(place))
    assert place in str(remote(place))


def test_what_pathlib_has_made_of_an_address_is_remote_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = Path("s3://bucket/x")
    assert "got 's3://bucket/x'" in str(remote(place))
    for write in (
        lambda: write_text(place, ""),
        lambda: atomic_folder(place).__enter__(),
        lambda: Output(place, {}, reads=[], overwrite=False),
        lambda: require_run_folder(place),
    ):
        with pytest.raises(ConfigError, match=r"s3://bucket/x"):
            write()
    monkeypatch.setenv("RECIPE_CACHE", "s3://bucket/cache")
    with pytest.raises(ConfigError, match=r"RECIPE_CACHE: expected a path on this machine"):
        home()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["data/wiki", "0.5:/data/a", "1e3:a/b", "a:b", "C:/x", "/data/s3:/x", "~/x", "*.gz"])
def test_what_is_here(place: str) -> None:
    assert remote(place) is None


def test_a_file_address_is_told_to_be_written_as_a_path() -> None:
    assert remote("file:///data/x") == "expected a path, got 'file:///data/x'; write it without file://"


def test_a_setting_of_paths_may_take_addresses_of_object_storage() -> None:
    @dataclass(frozen=True)
    class Data:
        files: tuple[str, ...] = field(default=(), metadata={"remote": "objects"})
        tokenizer: str = ""

    problems: list[str] = []
    named = ("data/a", "s3://bucket/a", "0.5:gs://bucket/*")
    assert fill(Data, {"files": list(named)}, "data", problems) == Data(named)
    fill(Data, {"files": ["https://host/a"], "tokenizer": "s3://bucket/t"}, "data", problems)
    assert [problem.partition(": remote places")[0] for problem in problems] == [
        "data.files: expected a path on this machine, got 'https://host/a'",
        "data.tokenizer: expected a path on this machine, got 's3://bucket/t'",
    ]


def test_list_files_of_other_readers_take_no_addresses(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("s3://bucket/a\n", encoding="utf-8")
    named = split_weights([f"@{tmp_path / 'list'}"])
    assert [str(one.address) for one in read_lists(named, objects=True)] == ["s3://bucket/a"]
    with pytest.raises(DataError, match=r"line 1: s3://bucket/a: expected a path on this machine"):
        read_lists(named)


def test_a_setting_that_means_an_address_says_so() -> None:
    @dataclass(frozen=True)
    class Tracker:
        server: str = field(default="", metadata={"remote": True})

    problems: list[str] = []
    assert fill(Tracker, {"server": "https://here"}, "tracker", problems) == Tracker("https://here")
    assert problems == []
