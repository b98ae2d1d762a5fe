"""Which files are read: folders, patterns, what is passed over, and what is refused before anything is read."""

from __future__ import annotations

import bz2
import os
from pathlib import Path

import pytest

from recipe_core.data.text import TextInput, find, records
from recipe_core.errors import DataError

pytest.importorskip("zstandard", reason="needs the packages of recipe-core[text]")
pytest.importorskip("mwxml", reason="needs the packages of recipe-core[text]")


def refused(*inputs: Path | str) -> str:
    with pytest.raises(DataError) as error:
        list(records(TextInput(tuple(map(str, inputs)))))
    return str(error.value)


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_folders_patterns_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.txt", "a/z.txt", "a/y.txt", "a/.hidden", ".git/x", "c.jsonl"):
        write(tmp_path / name, f'{{"text": "{name}"}}')
    monkeypatch.chdir(tmp_path)
    folder = [source.path for source in find(TextInput((str(tmp_path),)))]
    assert folder == [tmp_path / name for name in ("a/y.txt", "a/z.txt", "b.txt", "c.jsonl")]
    pattern = [str(source.path) for source in find(TextInput(("c.jsonl", "**/*.txt")))]
    assert pattern == ["c.jsonl", "a/y.txt", "a/z.txt", "b.txt"]
    assert [str(source.path) for source in find(TextInput((f"{tmp_path}/a*",)))] == [
        f"{tmp_path}/a/y.txt",
        f"{tmp_path}/a/z.txt",
    ]


def test_a_name_with_brackets_is_a_file_if_it_is_there(tmp_path: Path) -> None:
    (record,) = records(TextInput((str(write(tmp_path / "a[1].txt", "x")),)))
    assert record.text == "x"


def test_all_problems_are_gathered(tmp_path: Path) -> None:
    good = write(tmp_path / "good.txt", "x")
    write(tmp_path / "data.7z", b"7z\xbc\xaf\x27\x1c")
    write(tmp_path / "report.pdf", "%PDF-1.4")
    write(tmp_path / "table.csv", "a,b")
    write(tmp_path / "photo.dat", b"\x89PNG\0\0")
    write(tmp_path / "odd.xml", "<feed>")
    write(tmp_path / "wide.txt", "x".encode("utf-16"))
    write(tmp_path / "liar.gz", "no gzip")
    write(tmp_path / "empty.txt.bz2", "")
    write(tmp_path / "wiki-multistream-index.txt.bz2", bz2.compress(b"1:2:A"))
    (tmp_path / "dangling.txt").symlink_to("nowhere")
    (tmp_path / "void").mkdir()
    message = refused(tmp_path, good, tmp_path / "missing.txt", "nothing/*.txt", tmp_path / "void")
    for part in (
        "14 problems:",
        "data.7z: a .7z file is not supported; unpack it first",
        "report.pdf: a .pdf file is not supported",
        "table.csv: a .csv file is not supported; write it as JSON lines, or set format=text",
        "photo.dat: holds zero bytes",
        "odd.xml: is XML, but no MediaWiki dump",
        "wide.txt: starts with the byte order mark of utf-16; set encoding=utf-16",
        "liar.gz: the name ends in .gz, but the file holds no gzip data",
        "empty.txt.bz2: the name ends in .bz2, but the file is empty",
        "this is the index of a multistream dump",
        "dangling.txt: there is no such file or folder",
        f"{good}: named by {str(tmp_path)!r} and by {str(good)!r}",
        "missing.txt: there is no such file or folder",
        "nothing/*.txt: no file matches this pattern",
        "void: there is no file in this folder",
    ):
        assert part in message
    assert message.count("\n") == 14


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "this is neither a file nor a folder" in refused(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything can be read by root")
def test_unreadable_files_and_folders(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "x").chmod(0)
    write(tmp_path / "sub" / "b.txt", "x").parent.chmod(0)
    try:
        message = refused(tmp_path)
    finally:
        (tmp_path / "sub").chmod(0o700)
    assert "a.txt: cannot be read (Permission denied)" in message
    assert "sub: the folder cannot be read (Permission denied)" in message


def test_a_folder_that_cannot_be_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "good.txt", "x")
    (tmp_path / "sub").mkdir()
    scan = os.scandir

    def denied(path: str) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert refused(tmp_path) == f"{tmp_path / 'sub'}: the folder cannot be read (Permission denied)"


def test_settings_are_checked_together() -> None:
    with pytest.raises(ValueError, match="inputs: expected") as error:
        TextInput((), encoding="utf-9", json_key="", max_document=0)
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == [
        "inputs",
        "encoding",
        "json_key",
        "max_document",
    ]
    with pytest.raises(ValueError, match="expected a text encoding that Python knows"):
        TextInput(("a",), encoding="hex")


@pytest.mark.parametrize("count", [1, 3])
def test_empty_files_are_refused_before_anything_is_read(tmp_path: Path, count: int) -> None:
    for number in range(count):
        write(tmp_path / f"{number}.txt", "")
    with pytest.raises(DataError, match="there is nothing in"):
        find(TextInput((str(tmp_path),)))
