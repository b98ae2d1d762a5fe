"""JSON lines: what orjson reads at once is what the standard library's closer look finds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from recipe_core.data.text import Counts, TextInput, json_lines, records
from recipe_core.errors import DataError

pytest.importorskip("orjson", reason="needs the packages of recipe-core[text]")

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.sampled_from(["text", "id", "url"]), st.text(max_size=30) | VALUES)
LINES = st.one_of(
    OBJECTS.map(lambda value: json.dumps(value).encode()),
    OBJECTS.map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")),
    st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b"")),
    st.binary(max_size=8).map(lambda data: b'{"text": "' + data.replace(b"\n", b"").replace(b"\r", b"") + b'"}'),
    st.sampled_from(
        [b"", b"  ", "\u3000".encode(), b'{"text": "\\ud800"}', b'{"text": 1e999}', b'{"text": "a", "b": NaN}']
    ),
)


def outcome(path: Path, **given: Any) -> Any:
    """Everything that reading the file gives, or how it is refused."""
    counts = Counts()
    try:
        found = [
            (record.text, record.position)
            for record in records(TextInput((str(path),), most_replaced=1, **given), counts)
        ]
    except DataError as error:
        return str(error)
    if counts.skipped:
        counts.replaced = 0  # a line that is too long need not be decoded to its end
    return found, counts.as_dict()


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(LINES, max_size=6),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    errors=st.sampled_from(["replace", "strict"]),
    on_error=st.sampled_from(["stop", "skip"]),
    limit=st.sampled_from([8, 20, 1000]),
)
@example(  # more bytes than the limit, fewer characters
    lines=[json.dumps({"text": "\N{GRINNING FACE}" * 3}, ensure_ascii=False).encode()],
    ending=b"\n", last=True, mark=b"", errors="replace", on_error="stop", limit=20,
)  # fmt: skip
def test_bytes_and_text_give_the_same(
    lines: list[bytes], ending: bytes, last: bool, mark: bytes, errors: str, on_error: str, limit: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if errors == "strict":
        lines, limit = lines[:1], 1000  # of several things wrong, a decoder, which looks ahead, may tell another first
    path = tmp_path / "a.jsonl"
    path.write_bytes(mark + ending.join(lines) + ending * last)
    given = {"errors": errors, "on_error": on_error, "max_document": limit}
    quick = outcome(path, **given)
    with monkeypatch.context() as without:
        without.setattr(json_lines, "find_spec", lambda name: None)
        assert quick == outcome(path, **given)


def test_most_lines_need_no_closer_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    texts = ["plain", "two\nlines", "\N{GRINNING FACE}é", " spaces "]
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\r\n" for text in texts))
    monkeypatch.setattr(json_lines, "json", None)
    assert [record.text for record in records(TextInput((str(path),)))] == texts


def test_a_line_that_a_damaged_archive_broke_is_the_archives(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": f"{number} " * 100}) + "\n" for number in range(300))
    data = bytearray(gzip.compress(lines.encode(), compresslevel=0))
    data[80_000:80_020] = bytes(20)  # stored blocks: the checksum alone tells
    path, whole = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    path.write_bytes(data)
    assert outcome(path).startswith(f"{path}: damaged near byte ")
    assert outcome(path, on_error="skip").startswith(f"{path}: damaged near byte ")
    whole.write_bytes(gzip.compress(b'{"text": "x"}\n{"text": \n'))
    assert outcome(whole).startswith(f"{whole}:2: the line is not valid JSON")
