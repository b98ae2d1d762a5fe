"""The pieces of the inputs that the parts of a preparation read."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from recipe_core.data.prepare import PreparePart
from recipe_core.data.text import Counts, TextInput, find, pieces_of, records
from recipe_core.data.text import stream as text_stream
from recipe_core.errors import ConfigError, DataError

LINES = [
    '{"text": "one"}\n', "\n", '{"text": ""}\r\n', '{"text": "a long one, of several words"}\n', "  \t\n",
    '{"text": "x"}\r{"text": "y"}\n', '{"text": "東京"}\n',
]  # fmt: skip
BLOCKS = [
    "one\n",
    "\n",
    "\n",
    "two\r\nlines\r\n",
    "\r\n",
    " \t \n",
    "\x0b\x0c\n",
    "drei\n",
    "\u3000\n",
    "東京 \n",
    "\r",
    "last\n",
]


def split(settings: TextInput, count: int) -> tuple[list[str], list[str], dict[str, int], dict[str, int]]:
    """Texts and counts of one pass, and of all parts together."""
    counts, sums = Counts(), dict.fromkeys(Counts().as_dict(), 0)
    whole = [record.text for record in records(settings, counts)]
    texts = []
    for number in range(1, count + 1):
        of_part = Counts()
        pieces = pieces_of(settings, find(settings), PreparePart(number, count))
        texts += [record.text for record in records(settings, of_part, pieces)]
        sums = {name: sums[name] + value for name, value in of_part.as_dict().items()}
    return whole, texts, counts.as_dict(), sums


@pytest.mark.parametrize("count", [1, 2, 3, 7, 400])
@pytest.mark.parametrize("form", ["jsonl", "text"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "gb18030"])
def test_parts_read_each_document_once(tmp_path: Path, form: Any, encoding: str, count: int) -> None:
    chance = random.Random(count)
    for number in range(4):
        text = "".join(chance.choices(LINES if form == "jsonl" else BLOCKS, k=12 * number))
        text = text.removesuffix("\n") if number == 2 else text
        (tmp_path / f"{number}.txt").write_bytes(text.encode(encoding, "ignore"))
    (tmp_path / "packed.gz").write_bytes(
        gzip.compress("".join(LINES if form == "jsonl" else BLOCKS).encode(encoding, "ignore"))
    )
    (tmp_path / "z.txt").touch()
    settings = TextInput(inputs=(str(tmp_path),), format=form, documents="blank_line", encoding=encoding)
    whole, texts, counts, sums = split(settings, count)
    assert texts == whole
    assert sums == counts


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_blank_lines_across_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    from recipe_core.data.text import pieces

    monkeypatch.setattr(pieces, "BLOCK", block)
    monkeypatch.setattr(text_stream, "BLOCK", block)
    (tmp_path / "a.txt").write_bytes("".join(random.Random(3).choices(BLOCKS, k=40)).encode())
    settings = TextInput(inputs=(str(tmp_path / "a.txt"),), documents="blank_line")
    for count in (2, 5, 60):
        whole, texts, counts, sums = split(settings, count)
        assert texts == whole
        assert sums == counts


def test_large_files_are_cut_evenly(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "word " * 50}) + "\n" for _ in range(1000)))
    settings = TextInput(inputs=(str(tmp_path / "a.jsonl"),))
    sources = find(settings)
    sizes = [sum(p.bytes for p in pieces_of(settings, sources, PreparePart(k, 4))) for k in range(1, 5)]
    assert sum(sizes) == sources[0].size
    assert max(sizes) - min(sizes) < 600


def test_what_is_not_cut_is_read_by_the_part_in_which_it_begins(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One document.\n\n" * 100)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"x" * 10))
    settings = TextInput(inputs=(str(tmp_path),))
    sources = find(settings)
    found = [[p.path.name for p in pieces_of(settings, sources, PreparePart(k, 4))] for k in range(1, 5)]
    assert found == [["a.txt"], [], [], ["b.txt.gz"]]


def test_a_byte_order_mark_is_one_at_the_start_of_a_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\ufeffone\n\n\ufefftwo\n\n\ufeffthree\n", encoding="utf-8")
    whole, texts, _, _ = split(TextInput(inputs=(str(path),), documents="blank_line"), 3)
    assert texts == whole == ["one\n", "\ufefftwo\n", "\ufeffthree\n"]


def test_messages_name_the_start_of_the_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n' * 10 + "broken\n")
    settings = TextInput(inputs=(str(path),))
    pieces = pieces_of(settings, find(settings), PreparePart(2, 2))
    start = pieces[0].start
    line = 1 + 10 - start // 16
    with pytest.raises(DataError, match=rf"a.jsonl from byte {start}:{line}: the line is not valid JSON"):
        list(records(settings, pieces=pieces))


def test_the_encoding_of_a_piece_is_not_judged_alone(tmp_path: Path) -> None:
    good, bad = b'{"text": "a line that is as it should be"}\n', b'{"text": "\xff"}\n'
    path = tmp_path / "a.jsonl"
    path.write_bytes(good * 1000 + bad * 12)
    settings = TextInput(inputs=(str(path),))
    assert len(list(records(settings))) == 1012
    counts = Counts()
    pieces = pieces_of(settings, find(settings), PreparePart(1000, 1000))
    assert len(list(records(settings, counts, pieces))) > 1
    counts = Counts()
    list(records(settings, counts, pieces_of(settings, find(settings), PreparePart(10, 10))))
    assert counts.replaced_in_pieces == {str(path): 12}
    path.write_bytes(bad * 30)
    with pytest.raises(DataError, match="15 places in"):
        list(records(settings, pieces=pieces_of(settings, find(settings), PreparePart(1, 2))))


@pytest.mark.parametrize("text", ["", "3", "0/7", "8/7", "1/0", "-1/7", "1/2/3", "a/b", "1/99999999"])
def test_a_part_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"part: expected K/N, as in 3/7"):
        PreparePart.parse(text)
    assert str(PreparePart.parse("3/7")) == "3/7"
