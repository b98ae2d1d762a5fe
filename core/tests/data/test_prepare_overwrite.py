"""Replacing an earlier data set: only what its manifest lists goes, never an input, and not before the new is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.data.prepare import Output, file_problems, output, read_manifest
from recipe_core.data.prepare.manifest import manifest_text
from recipe_core.errors import ConfigError
from recipe_core.files import exchange


def made(final: Path, text: str, reads: Iterable[Path] = (), *, overwrite: bool = False) -> None:
    with Output(final, {"text": text}, reads=reads, overwrite=overwrite) as out:
        (out.folder / "deep").mkdir(exist_ok=True)
        for name in ("data", "deep/data", f"deep/{text}"):
            (out.folder / name).write_text(text)
        out.note({"done": text})
        out.finish({"kind": "text"})


def tree(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): p.read_text() if p.is_file() else ""
        for p in folder.rglob("*")
        if not p.is_dir()
    }


def listed(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def interrupted(final: Path, text: str, number: int = 1, *, overwrite: bool = False) -> None:
    """Note the part ``number``, which is the next one, and stop."""
    with Output(final, {"text": text}, reads=[], overwrite=overwrite) as out:
        assert out.done == [{"part": n} for n in range(1, number)]
        out.note({"part": number})
        raise KeyboardInterrupt


def late(final: Path) -> None:
    """A replacement that finds another file in the earlier set at its end."""
    with Output(final, {}, reads=[], overwrite=True) as out:
        (final / "late").write_text("mine")
        out.finish({"kind": "text"})


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    made(tmp_path / "data", "first")
    return tmp_path / "data"


@pytest.fixture(params=["in one step", "by two renames"])
def swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by two renames":
        monkeypatch.setattr(output, "exchange", lambda *_: False)
    return str(request.param)


def test_every_file_is_listed_and_only_these_go(earlier: Path, swap: str) -> None:
    assert sorted(read_manifest(earlier)["files"]) == ["data", "deep/data", "deep/first"]
    made(earlier, "second", overwrite=True)
    assert sorted(tree(earlier)) == ["data", "deep/data", "deep/second", "manifest.json"]
    assert file_problems(earlier, read_manifest(earlier)) == []
    assert listed(earlier.parent) == ["data"]


PUT: dict[str, Callable[[Path], object]] = {
    "thesis.tex": lambda path: path.write_text("mine"),
    "deep/notes": lambda path: path.write_text("mine"),
    "mine/notes": lambda path: (path.parent.mkdir(), path.write_text("mine")),
    "journal.jsonl": lambda path: path.write_text("mine"),
    "empty": lambda path: path.mkdir(),
    "deep/link": lambda path: path.symlink_to("data"),
    "data": lambda path: (path.rename(path.parent.parent / "moved"), path.symlink_to("../moved")),
    "deep": lambda path: (path.rename(path.parent.parent / "moved"), path.symlink_to("../moved")),
}


@pytest.mark.parametrize("name", PUT)
def test_a_file_of_the_user_in_an_earlier_set_is_named_and_stays(earlier: Path, name: str) -> None:
    PUT[name](earlier / name)
    before = tree(earlier.parent)
    with pytest.raises(ConfigError, match=rf"data holds what its manifest.json does not list \({name.split('/')[0]}"):
        made(earlier, "second", overwrite=True)
    assert tree(earlier.parent) == before


def test_a_file_of_the_user_that_comes_while_it_is_made_stays(earlier: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not list \(late\)"):
        late(earlier)
    assert (earlier / "late").read_text() == "mine"
    assert (earlier / "data").read_text() == "first"


def test_one_that_comes_in_the_last_moment_is_kept_aside(
    earlier: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(one: Path, two: Path) -> bool:
        (two / "late").write_text("mine")
        return exchange(one, two)

    monkeypatch.setattr(output, "exchange", later)
    made(earlier, "second", overwrite=True)
    assert tree(earlier.parent / ".data.old") == {"late": "mine"}
    assert ".data.old: kept" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"under the name .*\.data\.old, which is there already"):
        made(earlier, "third", overwrite=True)
    assert tree(earlier.parent / ".data.old") == {"late": "mine"}


def named(kind: str, data: Path, elsewhere: Path) -> Path:
    """A file of the data set under another name."""
    elsewhere.mkdir()
    if kind == "symbolic link":
        (elsewhere / "input").symlink_to(data / "deep" / "data")
    elif kind == "hard link":
        (elsewhere / "input").hardlink_to(data / "deep" / "data")
    elif kind == "linked folder":
        (elsewhere / "link").symlink_to(data)
        return elsewhere / "link" / "deep" / "data"
    elif kind == "relative":
        return Path(os.path.relpath(data / "deep" / "data"))
    elif kind == "dots":
        return elsewhere / ".." / "data" / "deep" / "data"
    elif kind == "the folder":
        return data
    else:
        return data / "deep" / "data"
    return elsewhere / "input"


@pytest.mark.parametrize(
    "kind", ["plain", "relative", "dots", "symbolic link", "hard link", "linked folder", "the folder"]
)
def test_an_input_in_the_earlier_set_is_refused(earlier: Path, kind: str) -> None:
    path = named(kind, earlier, earlier.parent / "elsewhere")
    before = tree(earlier.parent)
    with pytest.raises(ConfigError, match=r"data holds what this preparation reads \("):
        made(earlier, "second", [path], overwrite=True)
    assert tree(earlier.parent) == before


def test_an_output_through_a_link_is_the_same_folder(earlier: Path) -> None:
    (earlier.parent / "other").symlink_to(earlier.parent)
    with pytest.raises(ConfigError, match=r"data holds what this preparation reads"):
        made(earlier.parent / "other" / "data", "second", [earlier / "data"], overwrite=True)


@pytest.mark.parametrize("text", ['{"name": "app"}', '{"kind": "app", "files": {"index.html": {}}}', "{", "[]"])
def test_the_manifest_of_something_else_is_none_of_ours(tmp_path: Path, text: str) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match="web exists and was not made by `recipe prepare`"):
        made(tmp_path / "web", "x", overwrite=True)
    assert (tmp_path / "web" / "manifest.json").read_text() == text


@pytest.mark.parametrize("name", [".data.part", ".data.old"])
def test_folders_of_the_user_with_our_names_stay(earlier: Path, name: str) -> None:
    (earlier.parent / name).mkdir()
    (earlier.parent / name / "mine").write_text("mine")
    before = tree(earlier.parent)
    with pytest.raises(ConfigError, match="which is there already"):
        made(earlier, "second", overwrite=True)
    assert tree(earlier.parent) == before


def test_a_data_set_that_the_user_has_put_aside_stays(earlier: Path) -> None:
    aside = earlier.rename(earlier.with_name(".data.old"))
    with pytest.raises(KeyboardInterrupt):
        interrupted(earlier, "second")
    made(earlier, "second")
    assert (aside / "data").read_text() == "first"


def test_a_file_beyond_the_folder_that_a_manifest_lists_stays(earlier: Path) -> None:
    (earlier.parent / "mine").write_text("mine")
    manifest = read_manifest(earlier)
    manifest["files"]["../mine"] = manifest["files"].pop("deep/first")
    (earlier / "manifest.json").write_text(manifest_text(manifest))
    with pytest.raises(ConfigError, match=r"does not list \(deep/first\)"):
        made(earlier, "second", overwrite=True)
    (earlier / "deep" / "first").unlink()
    made(earlier, "second", overwrite=True)
    assert (earlier.parent / "mine").read_text() == "mine"


def test_an_interrupted_replacement_leaves_the_earlier_set_and_is_continued(earlier: Path) -> None:
    before = tree(earlier)
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            interrupted(earlier, "second", number, overwrite=True)
        assert tree(earlier) == before
    made(earlier, "second", overwrite=True)
    assert (earlier / "data").read_text() == "second"
    assert listed(earlier.parent) == ["data"]


class PowerLostError(BaseException):
    """Nothing after it is done."""


def counted(monkeypatch: pytest.MonkeyPatch, fails_at: int) -> list[str]:
    """Have the step ``fails_at`` of those that change names fail, and all after it; returns the steps done."""
    steps: list[str] = []

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(steps) >= fails_at:
                raise PowerLostError
            steps.append(name)
            return real(*args, **kwargs)

        return call

    for name in ("rename", "unlink", "rmdir"):
        monkeypatch.setattr(Path, name, watched(name, getattr(Path, name)))
    monkeypatch.setattr(output, "exchange", watched("exchange", output.exchange))
    monkeypatch.setattr(output, "remove", watched("remove", output.remove))
    return steps


@pytest.mark.parametrize("moment", range(12))
def test_power_lost_at_any_moment_of_the_swap(
    earlier: Path, swap: str, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        steps = counted(patch, moment)
        with contextlib.suppress(PowerLostError):  # it may have fewer steps
            made(earlier, "second", overwrite=True)
    if swap == "in one step":
        whole = read_manifest(earlier)  # at every moment there is a whole set
        assert whole["files"]
        assert file_problems(earlier, whole) == []
        assert (earlier / "data").read_text() == ("second" if "exchange" in steps else "first")
    made(earlier, "second", overwrite=True)
    assert sorted(tree(earlier)) == ["data", "deep/data", "deep/second", "manifest.json"]
    assert (earlier / "data").read_text() == "second"
    assert listed(earlier.parent) == ["data"]


def test_after_power_was_lost_between_two_renames_the_earlier_set_comes_back(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, target: Path) -> Path:
        if target == earlier:
            raise PowerLostError
        return rename(path, target)

    rename = Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(output, "exchange", lambda *_: False)
        patch.setattr(Path, "rename", fails)
        with pytest.raises(PowerLostError):
            made(earlier, "second", overwrite=True)
    assert not earlier.exists()
    with pytest.raises(ConfigError, match="data exists"):
        made(earlier, "other")
    assert (earlier / "data").read_text() == "first"


def test_names_are_exchanged_or_nothing_is_done(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if exchange(tmp_path / "one", tmp_path / "two"):
        assert listed(tmp_path / "one") == ["two"]
    assert not exchange(tmp_path / "one", tmp_path / "not there")
    assert (tmp_path / "one").exists()
