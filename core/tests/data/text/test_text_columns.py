"""Rows of Parquet and Arrow files are the documents that the same texts are as JSON lines."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pyarrow = pytest.importorskip("pyarrow", reason="needs the package of recipe-core[arrow]")

from column_files import FORMS, arrow_stream, parquet, read, refusal, table  # noqa: E402

from recipe_core.data.prepare import PreparePart  # noqa: E402
from recipe_core.data.text import Counts, TextInput, find, pieces_of, records  # noqa: E402
from recipe_core.data.text.columns.footer import row_groups  # noqa: E402
from recipe_core.errors import DataError  # noqa: E402

TEXTS = [
    "one",
    "",
    "two\r\nlines\n",
    " \t\n",
    "東京 \N{GRINNING FACE}",
    "\u3000",
    '"quoted"',
    "x" * 3000,
    "last\x00",
] * 9
TYPES = {
    "string": pyarrow.string(),
    "large": pyarrow.large_string(),
    "view": pyarrow.string_view(),
    "dictionary": pyarrow.dictionary(pyarrow.int16(), pyarrow.string()),
    "large dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.large_string()),
}


class Keeping(TextInput):
    """Empty texts are documents."""

    @property
    def keeps_empty(self) -> bool:
        """True."""
        return True


def documents(path: Path, settings: type[TextInput] = TextInput) -> tuple[list[tuple[str, int]], dict[str, int]]:
    counts = Counts()
    found = [(record.text, record.position) for record in records(settings((str(path),)), counts)]
    return found, counts.as_dict()


def json_lines(path: Path, texts: list[Any] = TEXTS) -> Path:
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))
    return path


@pytest.mark.parametrize("settings", [TextInput, Keeping])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_the_documents_of_json_lines(tmp_path: Path, form: str, kind: str, settings: Any) -> None:
    path = tmp_path / f"a.{form}"
    FORMS[form](path, table(TEXTS, TYPES[kind]))
    assert documents(path, settings) == documents(json_lines(tmp_path / "a.jsonl"), settings)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("form", ["arrow", "arrows"])
def test_compressed_batches(tmp_path: Path, form: str, compression: str) -> None:
    FORMS[form](tmp_path / "a", table(TEXTS), compression=compression)
    assert read(tmp_path / "a") == read(json_lines(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("options", [{"data_page_version": "2.0"}, {"use_dictionary": False}, {"compression": "zstd"}])
def test_encodings_of_parquet(tmp_path: Path, options: dict[str, Any]) -> None:
    parquet(tmp_path / "a", table(TEXTS), **options)
    assert read(tmp_path / "a") == read(json_lines(tmp_path / "a.jsonl"))


def test_the_content_tells_the_format_not_the_name(tmp_path: Path) -> None:
    for form, write in FORMS.items():
        write(tmp_path / f"{form}.txt", table([form]))
    arrow_stream(tmp_path / "named.parquet", table(["stream"]))
    assert read(tmp_path, format="text") == ["arrow", "arrows", "stream", "parquet"]


def test_files_of_several_kinds(tmp_path: Path) -> None:
    for form, write in FORMS.items():
        write(tmp_path / f"a.{form}", table([form]))
    json_lines(tmp_path / "b.jsonl", ["line"])
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"plain"))
    assert read(tmp_path) == ["arrow", "arrows", "parquet", "line", "plain"]


@pytest.mark.parametrize("form", FORMS)
def test_another_column(tmp_path: Path, form: str) -> None:
    names = {"a.b": ["dotted"], "text": ["other"], "a": [{"b": "inner"}]}
    FORMS[form](tmp_path / "a", pyarrow.table(names))
    assert read(tmp_path / "a", json_key="a.b") == ["dotted"]
    message = refusal(tmp_path / "a", json_key="a")
    assert message == (
        f"{tmp_path / 'a'}: the column 'a' is of the type struct<b: string>, expected text (string); "
        "name one of its columns of text by json_key=...: 'a.b', 'text'"
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"id": [1], "body": ["x"]}, "no column 'text'; name one of its columns of text by json_key=...: 'body'"),
        ({"id": [1]}, "there is no column 'text'; none of its columns holds text: 'id' (int64); name other inputs"),
        ({"text": [1]}, "the column 'text' is of the type int64, expected text (string); none of its columns"),
        ({"text": [["x"]], "b": ["x"]}, "the column 'text' is of the type list<"),
        ({"text": [b"x"], "b": ["x"]}, "the column 'text' is of the type binary, expected text (string); name one of"),
        ({f"c{n}": ["x"] for n in range(10)}, "'c6', 'c7' and 2 more"),
    ],
)  # fmt: skip
def test_a_column_that_is_no_text(tmp_path: Path, form: str, columns: Any, expected: str) -> None:
    FORMS[form](tmp_path / "a", pyarrow.table(columns))
    with pytest.raises(DataError) as error:
        find(TextInput((str(tmp_path / "a"),)))  # before anything is read
    assert str(error.value).startswith(f"{tmp_path / 'a'}: ")
    assert expected in str(error.value)


@pytest.mark.parametrize("form", ["arrow", "arrows"])  # pyarrow does not write it as Parquet
def test_a_column_that_is_there_twice(tmp_path: Path, form: str) -> None:
    FORMS[form](tmp_path / "a", pyarrow.Table.from_arrays([["a"], ["b"]], ["text", "text"]))
    assert "has 2 columns 'text'; give each column a name of its own" in refusal(tmp_path / "a")


@pytest.mark.parametrize("kind", ["string", "view", "dictionary"])
@pytest.mark.parametrize("form", FORMS)
def test_rows_without_a_text(tmp_path: Path, form: str, kind: str) -> None:
    texts = [*TEXTS[:25], None, "after"]
    FORMS[form](tmp_path / "a", table(texts, TYPES[kind]))
    assert refusal(tmp_path / "a").startswith(f"{tmp_path / 'a'}:26: expected a text in the column 'text', got null; ")
    assert f"{tmp_path / 'b.jsonl'}:26: expected a text" in refusal(json_lines(tmp_path / "b.jsonl", texts))
    counts = Counts()
    found = list(records(TextInput((str(tmp_path / "a"),), on_error="skip"), counts))
    assert (found[-1].text, found[-1].position, counts.skipped) == ("after", 27, 1)


@pytest.mark.parametrize("form", FORMS)
def test_texts_that_are_too_long(tmp_path: Path, form: str) -> None:
    FORMS[form](tmp_path / "a", table(["short", "x" * 11, "y" * 10]))
    assert f"{tmp_path / 'a'}:2: this text is longer than max_document=10" in refusal(tmp_path / "a", max_document=10)
    assert read(tmp_path / "a", max_document=10, on_error="skip") == ["short", "y" * 10]


@pytest.mark.parametrize("form", FORMS)
def test_files_without_rows(tmp_path: Path, form: str) -> None:
    FORMS[form](tmp_path / "a", table([]))
    assert (
        refusal(tmp_path / "a") == f"{tmp_path / 'a'}: there is no document in them (they are empty); name other inputs"
    )
    FORMS[form](tmp_path / "b", table(["text"]))
    assert read(tmp_path) == ["text"]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("kind", ["string", "dictionary"])
@pytest.mark.parametrize("form", FORMS)
def test_parts_read_each_row_once(tmp_path: Path, form: str, kind: str, count: int) -> None:
    FORMS[form](tmp_path / "a", table(TEXTS, TYPES[kind]))
    FORMS[form](tmp_path / "b", table([]))
    json_lines(tmp_path / "c.jsonl", TEXTS[:9])
    FORMS[form](tmp_path / "d", table(TEXTS[:33], TYPES[kind]), rows=1)
    settings = TextInput((str(tmp_path),))
    sources = find(settings)
    counts, sums, texts = Counts(), dict.fromkeys(Counts().as_dict(), 0), []
    whole = [(r.text, r.path, r.position) for r in records(settings, counts) if ".jsonl" not in r.path]
    for number in range(1, count + 1):
        of_part = Counts()
        pieces = pieces_of(settings, sources, PreparePart(number, count))
        found = [(r.text, r.path, r.position) for r in records(settings, of_part, pieces)]
        texts += [document for document in found if ".jsonl" not in document[1]]
        sums = {name: sums[name] + value for name, value in of_part.as_dict().items()}
    assert texts == whole  # also the numbers of rows
    assert sums == counts.as_dict()


@pytest.mark.parametrize("form", FORMS)
def test_large_files_are_cut_evenly(tmp_path: Path, form: str) -> None:
    options = {"use_dictionary": False, "compression": "none"} if form == "parquet" else {}
    FORMS[form](tmp_path / "a", table([f"text {number:06}" * 50 for number in range(400)]), **options)
    settings = TextInput((str(tmp_path / "a"),))
    sources = find(settings)
    pieces = [pieces_of(settings, sources, PreparePart(number, 4)) for number in range(1, 5)]
    assert sum(piece.bytes for (piece,) in pieces) == sources[0].size
    numbers = [len(list(records(settings, Counts(), part))) for part in pieces]
    assert sum(numbers) == 400
    assert min(numbers) >= 40  # the last piece also has the footer


@pytest.mark.parametrize("form", FORMS)
def test_progress_ends_with_the_bytes_of_the_files(tmp_path: Path, form: str) -> None:
    for name in "ab":
        FORMS[form](tmp_path / name, table([f"{name} {number}" for number in range(40)]))
    settings = TextInput((str(tmp_path),))
    sources = find(settings)
    consumed = [record.consumed for record in records(settings)]
    assert consumed == sorted(consumed)
    assert consumed[39] == sources[0].size
    assert consumed[-1] == sum(source.size for source in sources)


@pytest.mark.parametrize("form", FORMS)
def test_a_group_is_read_when_its_turn_comes(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    options = {"use_dictionary": False, "compression": "none"} if form == "parquet" else {}
    FORMS[form](path, table([f"{number:05}" * 2000 for number in range(100)]), rows=5, **options)
    taken = 0

    class Counted(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal taken
            data = super().read(size)
            taken += len(data)
            return data

    monkeypatch.setattr(Path, "open", lambda path, *args, **given: Counted(io.FileIO(path)))
    found = records(TextInput((str(path),)))
    next(found)
    assert 10_000 < taken < path.stat().st_size / 4
    assert len(list(found)) == 99


def test_the_footer_is_read_as_pyarrow_reads_it(tmp_path: Path) -> None:
    parquet(tmp_path / "a", table(TEXTS, pyarrow.string()), write_statistics=True, write_page_index=True)
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    metadata = pyarrow.parquet.read_metadata(tmp_path / "a")
    expected = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(at) for at in range(group.num_columns)]
        starts = [s for c in columns for s in (c.data_page_offset, c.dictionary_page_offset) if s]
        expected.append((min(starts), group.num_rows))
    assert [(group.start, group.rows) for group in row_groups(data[-8 - length : -8])] == expected
    assert len(expected) == 9


def test_without_pyarrow_one_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.parquet", "b.parquet"):
        parquet(tmp_path / name, table(TEXTS))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refusal(tmp_path) == (
        f"{tmp_path / 'a.parquet'}: is a file of Parquet, which needs the package pyarrow: "
        "pip install 'recipe-core[arrow]'"
    )
    monkeypatch.undo()
    monkeypatch.setattr(pyarrow, "__version__", "15.0.2")
    assert "expected pyarrow 16 or later, found 15.0.2" in refusal(tmp_path)
