"""Files to records: every format and packing, what is counted, and every way in which a file can be bad."""

from __future__ import annotations

import bz2
import gc
import gzip
import json
import pickle
import random
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

from recipe_core.data.text import Counts, Record, TextInput, clean, find, readers, records, total_bytes
from recipe_core.errors import DataError

zstandard = pytest.importorskip("zstandard", reason="needs the packages of recipe-core[text]")
pytest.importorskip("mwxml", reason="needs the packages of recipe-core[text]")

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
}
PACKED = [".gz", ".bz2", ".zst"]
DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo><sitename>Wiki</sitename><namespaces>
    <namespace key="0" case="first-letter" /><namespace key="6" case="first-letter">Datei</namespace>
    <namespace key="10" case="first-letter">Vorlage</namespace>
  </namespaces></siteinfo>
{pages}</mediawiki>
"""
PAGE = """  <page><title>{title}</title><ns>{ns}</ns><id>{id}</id>{redirect}
    <revision><id>1</id><timestamp>2020-01-01T00:00:00Z</timestamp><model>wikitext</model>
    <format>text/x-wiki</format><text bytes="1" xml:space="preserve">{text}</text></revision></page>
"""


def page(title: str, text: str, ns: int = 0, redirect: str = "") -> str:
    return PAGE.format(title=title, text=text, ns=ns, id=abs(hash(title)) % 1000 + 1, redirect=redirect)


def dump(*pages: str) -> bytes:
    return DUMP.format(pages="".join(pages)).encode()


def read(*inputs: Path | str, **settings: object) -> tuple[list[Record], Counts]:
    counts = Counts()
    found = list(records(TextInput(tuple(map(str, inputs)), **settings), counts))  # type: ignore[arg-type]
    return found, counts


def texts(*inputs: Path | str, **settings: object) -> list[str]:
    return [record.text for record in read(*inputs, **settings)[0]]


def refused(*inputs: Path | str, **settings: object) -> str:
    with pytest.raises(DataError) as error:
        read(*inputs, **settings)
    return str(error.value)


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def noise(size: int) -> str:
    """Text that hardly shrinks, so that a packed file has many blocks."""
    letters = random.Random(0)
    return "".join(letters.choice("abcdefghijklmnopqrstuvwxyz \n") for _ in range(size))


# Formats


@pytest.mark.parametrize("ending", PACK)
def test_plain_text_packed_in_every_way(tmp_path: Path, ending: str) -> None:
    text = noise(200_000)
    path = write(tmp_path / f"a.txt{ending}", PACK[ending](text.encode()))
    found, counts = read(path)
    assert [record.text for record in found] == [text]
    assert found[0].consumed == path.stat().st_size == total_bytes(TextInput((str(path),)))
    assert (counts.files, counts.documents) == (1, 1)
    assert clean(found[0]) == text


@pytest.mark.parametrize("ending", PACKED)
def test_streams_that_follow_each_other_are_one_text(tmp_path: Path, ending: str) -> None:
    parts = [f"part {number} {noise(3000)}" for number in range(5)]
    path = write(tmp_path / f"a.txt{ending}", b"".join(PACK[ending](part.encode()) for part in parts))
    assert texts(path) == ["".join(parts)]


def test_zeros_after_gzip_are_padding(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt.gz", gzip.compress(b"hello") + bytes(5000))) == ["hello"]


def test_blocks_between_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n\none\r\nmore\n  \t\n\ntwo\n\n\n\nthree")
    found, counts = read(path, documents="blank_line")
    assert [(record.text, record.position) for record in found] == [("one\nmore\n", 3), ("two\n", 7), ("three", 11)]
    assert str(found[1]) == f"{path}:7"
    assert counts.documents == 3


def test_json_lines(tmp_path: Path) -> None:
    values = ["plain", "two\nlines", "\N{GRINNING FACE}é", "  spaces stay  "]
    lines = [json.dumps({"id": number, "body": value}) for number, value in enumerate(values)]
    path = write(tmp_path / "a.jsonl", "\n".join(lines[:2]) + "\n\n" + "\r\n".join(lines[2:]))
    found, _ = read(path, json_key="body")
    assert [record.text for record in found] == values
    assert [record.position for record in found] == [1, 2, 4, 5]


def test_json_without_text_is_counted_as_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": ""}\n{"text": " \\n"}\n{"text": "x"}\n')
    found, counts = read(path)
    assert ([record.text for record in found], counts.empty) == (["x"], 2)


@pytest.mark.parametrize("ending", PACK)
def test_articles_of_a_dump(tmp_path: Path, ending: str) -> None:
    data = dump(
        page("Erde", "Die '''Erde''' &amp;amp; der [[Mond]]. [[Datei:x.png|mini|Bild]]"),
        page("Welt", "#WEITERLEITUNG [[Erde]]", redirect='<redirect title="Erde" />'),
        page("Old", "#REDIRECT [[Erde]]"),
        page("Vorlage:X", "{{X}}", ns=10),
        page("Leer", ""),
        page("Mond", "Zweite Seite."),
    )
    path = write(tmp_path / f"wiki.xml{ending}", PACK[ending](data))
    found, counts = read(path)
    assert [(record.title, record.position) for record in found] == [("Erde", 1), ("Mond", 6)]
    assert [clean(record) for record in found] == ["Die Erde & der Mond.", "Zweite Seite."]
    assert (counts.redirects, counts.other_namespaces, counts.empty) == (2, 1, 1)
    assert str(found[0]) == f"{path}, page 1 ('Erde')"
    assert pickle.loads(pickle.dumps(found[0])) == found[0]


def test_a_multistream_dump(tmp_path: Path) -> None:
    """The form in which Wikipedia is published: header, hundred pages each, footer, every one a bzip2 stream."""
    head, _, tail = DUMP.partition("{pages}")
    streams = [head, *(page(f"Page {number}", f"Text of {number}.") for number in range(30)), tail]
    path = write(
        tmp_path / "enwiki-latest-pages-articles-multistream1.xml-p1p41242.bz2",
        b"".join(bz2.compress(stream.encode()) for stream in streams),
    )
    assert texts(path) == [f"Text of {number}." for number in range(30)]
    consumed = [record.consumed for record in read(path)[0]]
    assert consumed == sorted(consumed)
    assert consumed[-1] <= path.stat().st_size


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.txt", '{"text": "x"}', "text"),
        ("a.json", '{"text": "x"}', "jsonl"),
        ("wiki_00", '{"text": "x"}\n', "jsonl"),
        ("wiki_00", '{"text": "' + "x" * 50_000, "jsonl"),
        ("wiki_00", "{not json}\n", "text"),
        ("LICENSE", "words", "text"),
        ("book.part1", "words", "text"),
        ("dump", "  <mediawiki xml:lang='en'>", "mediawiki"),
        ("dump.xml-p10p30", '<?xml version="1.0"?>\n<mediawiki>', "mediawiki"),
    ],
)
def test_formats_are_told_from_name_and_content(tmp_path: Path, name: str, data: str, expected: str) -> None:
    path = write(tmp_path / name, data)
    packed = write(tmp_path / f"{name}.zst", PACK[".zst"](data.encode()))
    unnamed = write(tmp_path / "packed" / name, gzip.compress(data.encode()))
    for file, packing in ((path, None), (packed, "zstd"), (unnamed, "gzip")):
        (source,) = find(TextInput((str(file),)))
        assert (source.format, source.packing) == (expected, packing)


def test_a_format_can_be_set(tmp_path: Path) -> None:
    path = write(tmp_path / "a.html", "<p>Hello")
    assert texts(path, format="text") == ["<p>Hello"]


# Empty


def test_inputs_without_any_document(tmp_path: Path) -> None:
    blank = write(tmp_path / "a.txt", " \n\n")
    assert refused(blank) == f"{blank}: there is no document in them (1 without any text); name other inputs"
    only = write(tmp_path / "b.xml", dump(page("A", "x", redirect='<redirect title="B"/>'), page("T:B", "y", ns=1)))
    assert "there is no document in them (1 a redirect, 1 no article but a page of another namespace)" in refused(only)


def test_an_empty_file_among_others_is_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "")
    write(tmp_path / "b.txt", "x")
    _, counts = read(tmp_path)
    assert (counts.files, counts.documents, counts.empty) == (2, 1, 1)


# Damage


def archive(tmp_path: Path, ending: str) -> tuple[Path, bytes]:
    lines = "".join(json.dumps({"text": noise(500)[: 400 + number % 90]}) + "\n" for number in range(300))
    data = PACK[ending](noise(150_000).replace("\n", " ").encode() + b"\n" + lines.encode())
    return tmp_path / f"a.txt{ending}", data


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("kept", [0.3, 0.9, -1])
def test_a_file_that_is_cut_off(tmp_path: Path, ending: str, kept: float) -> None:
    path, data = archive(tmp_path, ending)
    size = len(data) + int(kept) if kept < 0 else int(len(data) * kept)
    message = refused(write(path, data[:size]))
    assert message.startswith(f"{path}: ends at byte {size:,} in the middle of its")
    assert "cut off; get the file again" in message


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("part", [0.2, 0.6, 0.98])
def test_a_damaged_file(tmp_path: Path, ending: str, part: float) -> None:
    path, data = archive(tmp_path, ending)
    at = int(len(data) * part)
    damaged = data[:at] + bytes(byte ^ 0x5A for byte in data[at : at + 20]) + data[at + 20 :]
    message = refused(write(path, damaged), documents="blank_line")
    assert message.startswith(f"{path}: damaged near byte ")


@pytest.mark.parametrize("ending", PACKED)
def test_a_later_stream_that_is_damaged_is_not_the_end(tmp_path: Path, ending: str) -> None:
    """Python's own bz2 and gzip readers differ here: bz2 ignores what follows and ends silently."""
    one, two = (PACK[ending](noise(30_000).encode()) for _ in range(2))
    message = refused(write(tmp_path / f"a.txt{ending}", one + b"XX" + two[2:]))
    assert message.startswith(f"{tmp_path}/a.txt{ending}: damaged near byte ")


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.999])
def test_a_dump_that_is_cut_off(tmp_path: Path, ending: str, kept: float) -> None:
    data = dump(*(page(f"Page {number}", f"Text {number}. " * 50) for number in range(50)))
    cut = data[: int(len(data) * kept)]
    path = write(tmp_path / f"wiki.xml{ending}", PACK[ending](cut))
    message = refused(path)
    assert message.startswith(f"{path}: the XML is damaged or cut off after page ")
    assert f"near byte {path.stat().st_size:,} of the file" in message


def test_a_dump_with_something_behind_it(tmp_path: Path) -> None:
    data = dump(page("A", "Text."))
    assert "junk after document element" in refused(write(tmp_path / "a.xml", data + b"<more/>"))
    assert texts(write(tmp_path / "b.xml", data + b"\n" * 5000)) == ["Text."]


@pytest.mark.parametrize("kept", [-1, -6])
def test_the_checksum_at_the_end_of_a_dump_is_looked_at(tmp_path: Path, kept: int) -> None:
    data = gzip.compress(dump(page("A", "Text.")))
    assert "cut off" in refused(write(tmp_path / "a.xml.gz", data[:kept]))
    damaged = data[:-8] + bytes(8)
    assert "damaged near byte" in refused(write(tmp_path / "a.xml.gz", damaged))


def test_a_dump_of_something_else(tmp_path: Path) -> None:
    broken = write(tmp_path / "a.xml", "<mediawiki><siteinfo/><page><title>A</title><id>one</id></page></mediawiki>")
    assert "the XML is damaged or cut off after page 1" in refused(broken)
    other = write(tmp_path / "b.xml", "<feed></feed>")
    assert "expected <mediawiki>, found <feed>" in refused(other, format="mediawiki")


# Encodings


def test_invalid_bytes_are_replaced_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"good \xff bad \xc3( cut \xe2\x82")
    found, counts = read(path)
    assert found[0].text == "good \ufffd bad \ufffd( cut \ufffd"
    assert counts.replaced == 3


GERMAN = "Die Straße führt über die Brücke zum größeren Fluß, und später hören wir die Möwen schreien. "
FRENCH = "L'été dernier, nous avons mangé des crêpes à la plage près de l'église. "
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
RUSSIAN = "Мой дядя самых честных правил, когда не в шутку занемог, он уважать себя заставил. "


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("text", "encoding", "fitting"),
    [
        (GERMAN, "cp1252", "cp1252"),
        (FRENCH, "latin-1", "cp1252"),
        (RUSSIAN, "koi8-r", "koi8_r"),
        (RUSSIAN, "cp1251", "cp1251"),
        (JAPANESE, "shift_jis", "cp932"),
    ],
)
def test_a_file_in_another_encoding_is_refused_with_the_one_that_fits(
    tmp_path: Path, ending: str, text: str, encoding: str, fitting: str
) -> None:
    good = "Plain words.\n" * 10
    path = write(tmp_path / f"a.txt{ending}", PACK[ending]((good + text * 20).encode(encoding)))
    message = refused(path)
    assert re.match(rf"{path}:11: [\d,]+ places in [\d,]+ bytes are not utf-8, the first at byte 1\d\d; ", message)
    assert f"; set encoding={fitting}, which seems to fit. If it is right, most_replaced=1 " in message
    assert texts(path, encoding=fitting) == [good + text * 20]
    assert "\ufffd" in texts(path, most_replaced=1)[0]


def test_the_share_decides_and_a_few_places_do_not(tmp_path: Path) -> None:
    def with_places(count: int) -> Path:
        return write(tmp_path / f"{count}.txt", b"\xff\n" * count + b"x" * (100_000 - 2 * count))

    assert read(with_places(100))[1].replaced == 100
    assert f"{tmp_path}/101.txt:1: 101 places in 100,000 bytes are not utf-8" in refused(with_places(101))
    assert read(with_places(101), most_replaced=0.0011)[1].replaced == 101
    assert read(with_places(10), most_replaced=0)[1].replaced == 10
    assert "11 places" in refused(with_places(11), most_replaced=0)
    long = write(tmp_path / "long.txt", b"\xff" * 1000 + b"\n" * 3_000_000)  # ends long before the end of the file
    assert "1,000 places in 65,536 bytes" in refused(long)


def test_a_warning_names_file_line_and_byte_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_warned", set())  # other tests of this process may have used up the warnings
    line = json.dumps({"text": "ü" * 100}, ensure_ascii=False).encode() + b"\n"
    path = write(tmp_path / "a.jsonl", line * 50 + line.replace("ü".encode(), b"\xfc", 2) + line * 50)
    for _ in range(2):
        assert read(path)[1].replaced == 2
    text = capsys.readouterr().err
    at = 50 * len(line) + len(b'{"text": "')
    size = path.stat().st_size
    found = f"{path}:51: 2 places in {size:,} bytes are not utf-8, the first at byte {at:,}; "
    assert text.startswith(f"recipe: warning: {found}")
    assert text.endswith("U+FFFD stands for each now\n")
    assert text.count("\n") == 1
    for number in range(30):
        read(write(tmp_path / f"{number}.txt", b"\xff"))
    assert len(capsys.readouterr().err.splitlines()) <= 21


def test_a_character_on_the_border_of_two_blocks_is_whole(tmp_path: Path) -> None:
    text = "x" * 65_535 + "é" * 70_000
    found, counts = read(write(tmp_path / "a.txt", text))
    assert (found[0].text, counts.replaced) == (text, 0)


@pytest.mark.parametrize("ending", PACK)
def test_strict_names_line_and_byte(tmp_path: Path, ending: str) -> None:
    good = "line é\n" * 30_000
    path = write(tmp_path / f"a.txt{ending}", PACK[ending](good.encode() + b"bad \xff\n" + good.encode()))
    message = refused(path, errors="strict")
    assert message.startswith(f"{path}:30001: byte {len(good.encode()) + 4:,} of the text is not utf-8 (")
    assert "set encoding=... to what the file is written in, or errors=replace" in message


def test_other_encodings(tmp_path: Path) -> None:
    for encoding in ("utf-16", "latin-1", "cp1252", "utf-8-sig"):
        assert texts(write(tmp_path / encoding, "é\nü".encode(encoding)), encoding=encoding) == ["é\nü"]
    assert texts(write(tmp_path / "mark.txt", "\ufeffé")) == ["é"]
    assert texts(write(tmp_path / "j.txt", "日本。".encode("shift_jis")), encoding="shift_jis") == ["日本。"]


def test_invalid_bytes_in_a_dump(tmp_path: Path) -> None:
    data = dump(page("A", "caf%")).replace(b"%", b"\xe9")
    path = write(tmp_path / "a.xml", data)
    found, counts = read(path)
    assert (found[0].text, counts.replaced) == ("caf\ufffd", 1)
    assert f"byte {data.index(0xE9):,} of the text is not utf-8" in refused(path, errors="strict")


def test_halves_of_surrogate_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a\\ud83dz \\ud83d\\ude00"}\n')
    found, counts = read(path)
    assert (found[0].text, counts.replaced) == ("a\ufffdz \N{GRINNING FACE}", 1)
    assert f"{path}:1: the text has 1 halves of surrogate pairs" in refused(path, errors="strict")


# Broken JSON lines

BROKEN = [
    ('{"text": "x"', "is not valid JSON (Expecting ',' delimiter"),
    ('["x"]', "expected an object with the key 'text', got a list"),
    ("null", "expected an object with the key 'text', got null"),
    ('{"body": "x", "id": 1}', "the key 'text' is missing (the line has 'body', 'id'); name the key"),
    ("{}", "the key 'text' is missing (the line has no key at all)"),
    ('{"text": 5}', "expected a text under 'text', got a number"),
    ('{"text": null}', "expected a text under 'text', got null"),
    ("[" * 100_000, "the line is nested too deeply"),
]


@pytest.mark.parametrize(("line", "expected"), BROKEN, ids=[expected[:25] for _, expected in BROKEN])
def test_a_broken_json_line(tmp_path: Path, line: str, expected: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "one"}}\n\n{line}\n{{"text": "two"}}\n')
    message = refused(path)
    assert message.startswith(f"{path}:3: ")
    assert expected in message
    found, counts = read(path, on_error="skip")
    assert ([record.text for record in found], counts.skipped) == (["one", "two"], 1)


def test_a_json_line_that_is_cut_off(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "one"}\n{"text": "tw')
    assert f"{path}:2: the line is cut off" in refused(path)


# Too long


@pytest.mark.parametrize("documents", ["file", "blank_line"])
def test_a_document_that_is_too_long(tmp_path: Path, documents: str) -> None:
    write(tmp_path / "a.txt", "x" * 50 + "\n" + "y" * 60 + "\n\nshort\n")
    write(tmp_path / "b.txt", "after\n")
    settings = {"documents": documents, "max_document": 100}
    assert f"{tmp_path}/a.txt" in (message := refused(tmp_path, **settings))
    assert "is longer than max_document=100 characters" in message
    found, counts = read(tmp_path, on_error="skip", **settings)
    expected = ["after\n"] if documents == "file" else ["short\n", "after\n"]
    assert ([record.text for record in found], counts.skipped) == (expected, 1)


def test_a_document_of_just_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "' + "x" * 88 + '"}\n')
    assert texts(path, max_document=100) == ["x" * 88]
    assert f"{path}:1: this line is longer than" in refused(path, max_document=99)


@pytest.mark.parametrize("ending", PACK)
def test_a_line_too_long_for_memory_is_passed_over(tmp_path: Path, ending: str) -> None:
    lines = b'{"text": "one"}\n{"text": "' + b"x" * 3_000_000 + b'"}\n{"text": "two"}\n'
    path = write(tmp_path / f"a.jsonl{ending}", PACK[ending](lines))
    assert f"{path}:2: this line is longer than max_document=1,000,000 characters" in refused(
        path, max_document=1_000_000
    )
    found, counts = read(path, max_document=1_000_000, on_error="skip")
    assert [(record.text, record.position) for record in found] == [("one", 1), ("two", 3)]
    assert counts.skipped == 1


def test_what_is_passed_over_is_still_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", gzip.compress(noise(300_000).encode())[:-4])
    assert "cut off" in refused(path, max_document=1000, on_error="skip")


def test_a_page_that_is_too_long(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xml", dump(page("A", "short"), page("B", "x " * 200_000)))
    assert "is longer than max_document=1,000 characters" in refused(path, max_document=1000)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(30_000):
            file.write(json.dumps({"text": f"{number} " * 200}).encode() + b"\n")
    tracemalloc.start()
    try:
        count = sum(1 for _ in records(TextInput((str(path),))))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 30_000
    assert peak < 8_000_000  # of some 35 MB of text


def test_pages_that_were_read_are_not_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xml", dump(*(page(f"P{number}", "Text.") for number in range(6000))))
    for number, _ in enumerate(records(TextInput((str(path),)))):
        if number == 5900:
            elements = sum(type(found) is Element for found in gc.get_objects())
    assert elements < 4000  # those of the block that is being parsed; mwxml alone would keep 5900 more


def test_no_heavy_import(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "x"}\n')
    code = (
        "import sys; from recipe_core.data.text import TextInput, records, sentences;"
        f"assert len(list(records(TextInput(({str(path)!r},))))) == 1;"
        "print([name for name in ('torch', 'numpy', 'mwxml', 'mwparserfromhell', 'regex', 'zstandard')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"
