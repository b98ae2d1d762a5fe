"""Damaged files with columns are refused in one line, or read as they were; never shorter, and never with a crash."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest

pyarrow = pytest.importorskip("pyarrow", reason="needs the package of recipe-core[arrow]")

from column_files import FORMS, arrow_file, arrow_stream, parquet, read, refusal, table  # noqa: E402

TEXTS = [f"text {number} of many" for number in range(60)]
CHECKED: dict[str, dict[str, Any]] = {
    "parquet": {"write_page_checksum": True, "compression": "zstd"},
    "arrow": {"compression": "zstd"},
    "arrows": {"compression": "zstd"},
}
"""Options by which single wrong bytes of texts are seen: checksums, or a compression that fails."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.dictionary(pyarrow.int8(), pyarrow.string())])
def test_a_file_that_is_cut_off_is_refused_wherever_it_was_cut(tmp_path: Path, form: str, kind: Any) -> None:
    path = tmp_path / f"a.{form}"
    FORMS[form](path, table(TEXTS, kind))
    whole = path.read_bytes()
    ends = {0, 1, 4, 8, 9, len(whole) - 1, len(whole) - 8, *random.Random(1).sample(range(len(whole)), 30)}
    for end in sorted(ends):
        path.write_bytes(whole[:end])
        message = refusal(path)
        assert message.startswith(f"{path}: "), end
        kinds = ("there is nothing in the file, it is empty", "the name ends in", "file is cut off; get it again")
        assert any(kind in message for kind in kinds[(end > 0) + (end > 200) :]), (end, message)


@pytest.mark.parametrize("form", ["arrow", "arrows"])
def test_a_file_of_which_only_whole_batches_are_left_is_cut_off(tmp_path: Path, form: str) -> None:
    from recipe_core.data.text.columns.messages import messages

    path = tmp_path / "a"
    FORMS[form](path, table(TEXTS))
    whole = path.read_bytes()
    with path.open("rb") as file:
        places = [message.stop for message in messages(file, len(whole))]
    assert len(places) == 7
    for place in places:
        path.write_bytes(whole[:place])  # pyarrow itself reads a stream up to here without complaint
        assert "so the Arrow file is cut off; get it again" in refusal(path)


@pytest.mark.parametrize("form", FORMS)
def test_wrong_bytes(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a"
    FORMS[form](path, table(TEXTS), **CHECKED[form])
    whole, chance = path.read_bytes(), random.Random(2)
    refused = 0
    for _ in range(250):
        data = bytearray(whole)
        at = chance.randrange(8, len(data))
        if chance.random() < 0.5:
            data[at] ^= 1 << chance.randrange(8)
        else:
            data[at : at + 8] = chance.randbytes(8)
        path.write_bytes(data)
        try:
            found = read(path)
        except Exception:
            refused += bool(refusal(path))
        else:
            assert len(found) == 60
    assert refused > 100


def test_damaged_footers(tmp_path: Path) -> None:
    """At some of them, such as one with a histogram of another length, pyarrow's view of row groups ends Python."""
    path = tmp_path / "a.parquet"
    parquet(path, table(TEXTS))
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    chance = random.Random(3)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(4):
            damaged[-8 - chance.randrange(1, length)] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            found = read(path)
        except Exception:
            assert refusal(path)
        else:
            assert len(found) == 60


@pytest.mark.parametrize("form", ["arrow", "arrows"])
def test_offsets_that_lead_out_of_the_file(tmp_path: Path, form: str) -> None:
    column = pyarrow.StringArray.from_buffers(
        3, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\xff\xff\xff\x0f\3\0\0\0"), pyarrow.py_buffer(b"abc")
    )
    FORMS[form](tmp_path / "a", pyarrow.table({"text": column}))
    assert refusal(tmp_path / "a").startswith(f"{tmp_path / 'a'}: is damaged (Arrow: ")


@pytest.mark.parametrize("form", FORMS)
def test_bytes_that_are_no_text(tmp_path: Path, form: str) -> None:
    column = pyarrow.array([b"one", b"two", b"\xe6\x9d\xff"]).view(pyarrow.string())
    FORMS[form](tmp_path / "a", pyarrow.table({"text": column}), rows=2)
    assert refusal(tmp_path / "a") == (
        f"{tmp_path / 'a'}:3: the column holds bytes that are not UTF-8 (e6 9d); write the file again"
    )
    if form != "parquet":
        words = pyarrow.DictionaryArray.from_arrays([0, 1, 2], column)
        FORMS[form](tmp_path / "b", pyarrow.table({"text": words}))
        assert "are not UTF-8 (in a dictionary of texts)" in refusal(tmp_path / "b")


def test_streams_that_follow_each_other_are_not_read_as_the_first_alone(tmp_path: Path) -> None:
    arrow_stream(tmp_path / "a", table(TEXTS))
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(2 * data)
    assert f"its stream ends at byte {len(data):,}, and other bytes follow" in refusal(tmp_path / "a")


def test_a_footer_that_lists_other_batches(tmp_path: Path) -> None:
    for name, count in (("a", 60), ("b", 30)):
        arrow_file(tmp_path / name, table(TEXTS[:count]))
    batches = [(tmp_path / name).read_bytes().partition(b"\xff\xff\xff\xff\0\0\0\0") for name in "ab"]
    (tmp_path / "c").write_bytes(b"".join((batches[1][0], *batches[0][1:])))
    assert "is damaged (Arrow: the footer lists 6 record batches, and 3 are there)" in refusal(tmp_path / "c")


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted_columns(tmp_path: Path, plaintext_footer: bool) -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Client(encryption.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key: bytes, name: str) -> bytes:
            return key

        def unwrap_key(self, key: bytes, name: str) -> bytes:
            return key

    def write(path: Path, columns: list[str]) -> None:
        settings = encryption.EncryptionConfiguration(
            footer_key="k", column_keys={"k": columns}, plaintext_footer=plaintext_footer
        )
        factory = encryption.CryptoFactory(lambda config: Client())
        properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
        texts = table(TEXTS).drop(["tags"])
        with pyarrow.parquet.ParquetWriter(path, texts.schema, encryption_properties=properties) as writer:
            writer.write_table(texts)

    write(tmp_path / "a.parquet", ["text"])
    assert refusal(tmp_path) == f"{tmp_path / 'a.parquet'}: is encrypted; write it again without encryption"
    if plaintext_footer:
        write(tmp_path / "a.parquet", ["id"])
        assert read(tmp_path) == TEXTS


def test_files_that_only_have_the_name(tmp_path: Path) -> None:
    parquet(tmp_path / "good.parquet", table(TEXTS))
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"
    files = {
        "a.parquet": pointer,
        "b.jsonl": pointer,
        "c.txt.gz": pointer,
        "d.parquet": b"",
        "e.arrow": b'{"text": "x"}\n',
        "f.parquet.gz": gzip.compress((tmp_path / "good.parquet").read_bytes()),
        "g.feather": b"FEA1\0\0\0\0",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(Exception, match="7 problems:") as error:
        read(tmp_path)
    for expected in (
        "a.parquet: is a pointer of Git LFS, not the file that it stands for; get that by `git lfs pull`",
        "b.jsonl: is a pointer of Git LFS",
        "c.txt.gz: is a pointer of Git LFS",
        "d.parquet: the name ends in .parquet, but the file is empty; get it again, or give it its right name",
        "e.arrow: the name ends in .arrow, but the file holds no Arrow data",
        "f.parquet.gz: holds a file of columns, packed by gzip, which cannot be read so; unpack it first",
        "g.feather: a .feather1 file is not supported; write it again by a later release",
    ):
        assert expected in str(error.value)


def test_a_summary_of_other_files(tmp_path: Path) -> None:
    collected: list[Any] = []
    parquet(tmp_path / "a.parquet", table(TEXTS), metadata_collector=collected)
    collected[0].set_file_path("a.parquet")
    collected[0].write_metadata_file(tmp_path / "_metadata")
    assert "_metadata: holds no rows but the place of those in 'a.parquet'; name the files" in refusal(tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_went_after_it_was_found(tmp_path: Path, form: str) -> None:
    from recipe_core.data.text import Counts, TextInput, find, records
    from recipe_core.errors import DataError

    FORMS[form](tmp_path / "a", table(TEXTS))
    settings = TextInput((str(tmp_path / "a"),))
    sources = find(settings)
    (tmp_path / "a").unlink()
    with pytest.raises(DataError, match=r"a: cannot be read \(No such file"):
        list(records(settings, Counts(), sources))
