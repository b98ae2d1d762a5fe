"""The output of a preparation: continued, never incomplete, never a foreign folder."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.data.prepare import (
    Output,
    WorkerDiedError,
    file_facts,
    file_problems,
    input_facts,
    read_manifest,
    sha256,
)
from recipe_core.data.prepare.manifest import NAME, manifest_text
from recipe_core.errors import ConfigError, DataError, DiskError

SETTINGS = {"inputs": ["a.txt"], "vocabulary": 300}


def opened(final: Path, settings: dict[str, Any] | None = None, *, overwrite: bool = False) -> Output:
    return Output(final, SETTINGS if settings is None else settings, reads=[], overwrite=overwrite)


def made(final: Path, text: str, *, overwrite: bool = False) -> None:
    with opened(final, {"text": text}, overwrite=overwrite) as output:
        (output.folder / "data").write_text(text)
        output.finish({"kind": "text", "files": file_facts(output.folder, ["data"])})


def test_the_root_is_no_output() -> None:
    with pytest.raises(ConfigError, match="output: /: is the root of the file system; name a folder in it"):
        opened(Path("/"))


def test_it_appears_when_it_is_complete_and_holds_nothing_else(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "data"
    with opened(final) as output:
        (output.folder / "shard").write_bytes(b"12")
        output.note({"shard": 1})
        assert not final.exists()
        output.finish({"kind": "x"})
    assert sorted(p.name for p in final.iterdir()) == ["manifest.json", "shard"]
    assert [p.name for p in final.parent.iterdir()] == ["data"]
    assert read_manifest(final) == {"kind": "x", "files": file_facts(final, ["shard"])}


def stopped(final: Path, error: BaseException, entries: Iterable[int]) -> None:
    with opened(final) as output:
        for number in entries:
            (output.folder / f"shard{number}").touch()
            output.note({"shard": number})
        raise error


def interrupted(final: Path, error: BaseException, entries: Iterable[int] = range(2)) -> None:
    with pytest.raises(type(error)):
        stopped(final, error, entries)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DiskError("full"), WorkerDiedError("killed"), RuntimeError()])
def test_an_interrupted_run_is_continued(tmp_path: Path, error: BaseException) -> None:
    interrupted(tmp_path / "data", error)
    with opened(tmp_path / "data") as output:
        assert output.done == [{"shard": 0}, {"shard": 1}]
        assert (output.folder / "shard1").exists()
        output.note({"shard": 1})  # equal entries are two entries
        assert len(output.done) == 3
        output.finish({})
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["manifest.json", "shard0", "shard1"]


@pytest.mark.parametrize("error", [DataError("broken line"), ConfigError("no such token")])
def test_a_mistake_of_the_user_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    interrupted(tmp_path / "data", error)
    assert list(tmp_path.iterdir()) == []


def test_nothing_done_leaves_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path / "data", KeyboardInterrupt(), entries=())
    assert list(tmp_path.iterdir()) == []


def test_other_settings_start_anew(tmp_path: Path) -> None:
    interrupted(tmp_path / "data", KeyboardInterrupt())
    with opened(tmp_path / "data", {**SETTINGS, "vocabulary": 301}) as output:
        assert output.done == []
        assert [p.name for p in output.folder.iterdir() if p.name.startswith("shard")] == []


@pytest.mark.parametrize("torn", [b'{"shard": 2', b"\0\0\0\0", b"\xff\xfe", b'{"shard": 2}'])
def test_the_torn_last_line_of_a_journal_is_dropped(tmp_path: Path, torn: bytes) -> None:
    interrupted(tmp_path / "data", KeyboardInterrupt())
    journal = tmp_path / ".data.part" / "journal.jsonl"
    with journal.open("ab") as file:
        file.write(torn)
    whole = [0, 1, 2] if torn.endswith(b"}") else [0, 1]
    for _ in range(2):
        interrupted(tmp_path / "data", KeyboardInterrupt(), entries=[3])
        whole.append(3)
        lines = journal.read_text().splitlines()
        assert [json.loads(line) for line in lines[1:]] == [{"shard": number} for number in whole]


def test_an_output_that_exists_stays(tmp_path: Path) -> None:
    made(tmp_path / "data", "first")
    with pytest.raises(ConfigError, match=r"output: .*data exists; name another folder, or set overwrite=true"):
        opened(tmp_path / "data")
    assert (tmp_path / "data" / "data").read_text() == "first"


def test_overwriting_replaces_it_at_the_end(tmp_path: Path) -> None:
    made(tmp_path / "data", "first")
    with opened(tmp_path / "data", overwrite=True):
        assert (tmp_path / "data" / "data").read_text() == "first"
    made(tmp_path / "data", "second", overwrite=True)
    assert (tmp_path / "data" / "data").read_text() == "second"
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_was_not_prepared_is_never_overwritten(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "thesis.txt").touch()
    elif kind == "file":
        (tmp_path / "data").touch()
    else:
        made(tmp_path / "real", "x")
        (tmp_path / "data").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match=r"data exists and was not made by `recipe prepare`"):
        opened(tmp_path / "data", overwrite=True)


def test_an_output_that_appears_meanwhile_is_not_lost(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as output:
        (tmp_path / "data").mkdir()
        with pytest.raises(ConfigError, match="data exists"):
            output.finish({})


def test_another_process_that_makes_the_same_output_is_noticed(tmp_path: Path) -> None:
    other = (
        "import sys, pathlib; from recipe_core.data.prepare import Output\n"
        "try:\n    Output(pathlib.Path(sys.argv[1]), {}, reads=[], overwrite=False)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", other, tmp_path / "data"]
    with opened(tmp_path / "data") as output:
        output.note({"shard": 0})
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.stdout.startswith("ConfigError output: another process makes ")
    with opened(tmp_path / "data") as output:
        assert output.done == [{"shard": 0}]


def test_a_disk_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=r"file/data: cannot be written \(Not a directory\); choose another folder$"):
        opened(tmp_path / "file" / "data")
    full = r"cannot be written \(No space left on device\); free some space and give the same command again"
    with pytest.raises(DiskError, match=full), opened(tmp_path / "data") as output, output.writing():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_files_are_compared_with_the_manifest(tmp_path: Path) -> None:
    made(tmp_path / "data", "first")
    manifest = read_manifest(tmp_path / "data")
    assert file_problems(tmp_path / "data", manifest) == []
    file = tmp_path / "data" / "data"
    file.write_text("First")
    assert file_problems(tmp_path / "data", manifest) == [
        f"{file}: does not hold the bytes that were written (SHA-256 differs)"
    ]
    file.write_text("firs")
    assert file_problems(tmp_path / "data", manifest) == [f"{file}: has 4 bytes instead of 5"]
    file.unlink()
    assert file_problems(tmp_path / "data", manifest) == [f"{file}: is missing"]


def test_a_manifest_names_what_is_there_and_has_a_digest(tmp_path: Path) -> None:
    """An entry that was taken out, so that its file could be changed, shows; so does a file that was put there."""
    folder = tmp_path / "data"
    made(folder, "first")
    (folder / "more").touch()
    assert file_problems(folder, read_manifest(folder)) == [
        f"{folder}/more: is not in the manifest; move it out of the folder"
    ]
    written = json.loads((folder / "manifest.json").read_text())
    changed = {**written, "files": {}}
    (folder / "manifest.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match=r"manifest\.json: is damaged \(its own digest differs"):
        read_manifest(folder)
    without = {key: value for key, value in changed.items() if key != "sha256"}
    (folder / "manifest.json").write_text(json.dumps(without))
    with pytest.raises(DataError, match="a manifest of version 2 has a digest of itself"):
        read_manifest(folder)
    (folder / "manifest.json").write_text(json.dumps({k: v for k, v in without.items() if k != "manifest"}))
    assert file_problems(folder, read_manifest(folder)) == [
        f"{folder}/{name}: is not in the manifest; move it out of the folder" for name in ("data", "more")
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"files": []}'])
def test_a_damaged_manifest_is_an_error(tmp_path: Path, text: str) -> None:
    assert read_manifest(tmp_path) == {}
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest.json: is damaged"):
        read_manifest(tmp_path)


def test_facts_and_hashes_of_inputs(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    os.utime(path, ns=(0, 5))
    assert input_facts([path]) == [{"path": str(path), "bytes": 3, "changed": 5}]
    assert sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(DataError, match=r"b: cannot be read \(No such file"):
        sha256(tmp_path / "b")


def test_names_of_inputs_that_are_no_text_in_this_locale(tmp_path: Path) -> None:
    """``LC_ALL=C`` with an umlaut in a name, which Python gives as halves of surrogate pairs; or no text anywhere."""
    names = ["\udcc3\udca4.txt", "\udcff.txt"]
    (tmp_path / NAME).write_text(manifest_text({"inputs": names}), encoding="utf-8")
    assert read_manifest(tmp_path)["inputs"] == ["ä.txt", "\ufffd.txt"]
