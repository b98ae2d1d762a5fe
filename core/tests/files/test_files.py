"""Files appear whole or not at all, and are built once."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path

import pytest

from recipe_core.errors import DiskError
from recipe_core.files import (
    aside,
    atomic_file,
    atomic_folder,
    build_once,
    digest,
    disk_error,
    home,
    remove,
    require_space,
    sync,
    write_text,
)


def test_atomic_file_replaces_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    write_text(path, "old")
    with atomic_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_atomic_file_keeps_the_old_one_on_any_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def interrupted() -> None:
        with atomic_file(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


def test_full_disk_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    full = r"a\.txt: cannot be written \(No space left on device\); free some space or choose another folder"
    with pytest.raises(DiskError, match=full), atomic_file(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_file_of_the_cache_that_does_not_fit_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The message names the file, not the hidden one that was written."""
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path))
    words = os.strerror(number)
    full = (
        rf"^{tmp_path}/indices: cannot be written \({words}\); free some space or set RECIPE_CACHE to another folder$"
    )
    with pytest.raises(DiskError) as error, atomic_folder(tmp_path / "indices") as part, atomic_file(part / "a"):
        raise OSError(number, words)
    assert str(error.value).startswith(f"{tmp_path}/indices/a: cannot be written ({words}); free some space or set")
    with pytest.raises(DiskError, match=full):
        raise disk_error(OSError(number, words), tmp_path / "indices")


def test_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "a.txt"
    with pytest.raises(DiskError, match=r"a\.txt: cannot be written \(.*\); choose another folder"):
        write_text(path, "x")
    with pytest.raises(DiskError, match=r"a\.txt: cannot be written \(.*\); choose another folder"):
        build_once(path, lambda part: part.touch())


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "gone", "input.txt"), ConnectionError("cut")])
def test_errors_of_the_block_itself_stay_what_they_are(tmp_path: Path, error: OSError) -> None:
    """A missing input is no full disk."""
    with pytest.raises(type(error)) as found, atomic_file(tmp_path / "a.txt"):
        raise error
    assert found.value is error


def test_atomic_folder(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_folder(path) as part:
        (part / "sub").mkdir()
        (part / "sub" / "x").write_text("1")
        assert not path.exists()
    assert (path / "sub" / "x").read_text() == "1"
    with pytest.raises(DiskError, match="not empty"), atomic_folder(path) as part:
        (part / "y").touch()
    assert [p.name for p in tmp_path.rglob("*")] == ["a", "sub", "x"]


def test_build_once_builds_once(tmp_path: Path) -> None:
    path, built = tmp_path / "index", []

    def build(part: Path) -> None:
        built.append(part)
        part.write_text("content")

    threads = [threading.Thread(target=build_once, args=(path, build)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert path.read_text() == "content"


def test_build_once_builds_again_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with pytest.raises(ZeroDivisionError):
        build_once(path, lambda part: 1 // 0)  # type: ignore[arg-type,return-value]
    assert not path.exists()
    build_once(path, lambda part: part.touch())
    assert path.exists()


def test_digest_is_sha256_of_the_whole_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000 + b"end"  # more than one piece
    (tmp_path / "x").write_bytes(content)
    assert digest(tmp_path / "x") == hashlib.sha256(content).hexdigest()


def test_sync_lets_a_folder_be_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "fsync", refuse)
    sync(tmp_path)
    (tmp_path / "x").touch()
    with pytest.raises(OSError, match="not here"):
        sync(tmp_path / "x")


def test_require_space(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "there", 1, "nothing much")
    with pytest.raises(DiskError, match=r"the index needs 1,000,000,000,000\.0 MB and .* MB are free"):
        require_space(tmp_path / "not" / "there", 10**18, "the index")


def test_remove_takes_files_folders_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("a", "link", "nothing"):
        remove(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["target"]


def test_names_aside_are_hidden_and_differ(tmp_path: Path) -> None:
    one, two = aside(tmp_path / "x"), aside(tmp_path / "x")
    assert one != two
    assert one.parent == tmp_path
    assert one.match(".x.*.part")


def test_home_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path))
    assert home() == tmp_path
