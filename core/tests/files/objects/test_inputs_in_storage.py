"""Texts in object storage, as inputs of a preparation."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from recipe_core.data.prepare import PreparePart, hashed, input_facts
from recipe_core.data.text import TextInput, find, pieces_of, records
from recipe_core.data.text.objects import input_objects
from recipe_core.errors import ConfigError, DataError
from recipe_core.testing.objects import ObjectServer

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'recipe-core[s3]'")
KEYS = ("dump/a.jsonl", "dump/b/c.jsonl.gz", "dump/b/d.txt", "dump/.hidden/e.txt", "dump/b/.f.txt", "other/g.txt")


def lines(first: int, count: int) -> bytes:
    return "".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(first, first + count)).encode()


@pytest.fixture
def texts(server: ObjectServer, tmp_path: Path) -> Path:
    """A folder with the same files as the bucket."""
    contents = [lines(0, 3000), gzip.compress(lines(3000, 50)), b"one\n\ntwo\n", b"hidden", b"hidden", b"other"]
    for key, content in zip(KEYS, contents, strict=True):
        server.put(key, content)
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(content)
    return tmp_path


def names(address: str) -> list[str]:
    return [str(one).removeprefix("s3://bucket/") for one in input_objects(address)]


def test_what_an_address_names(texts: Path) -> None:
    assert names("s3://bucket/dump") == names("s3://bucket/dump/") == [KEYS[0], KEYS[1], KEYS[2]]
    assert names("s3://bucket/dump/a.jsonl") == [KEYS[0]]
    assert names("s3://bucket") == [*KEYS[:3], KEYS[5]]
    assert names("s3://bucket/dump/*.jsonl") == [KEYS[0]]
    assert names("s3://bucket/**/*.jsonl*") == [KEYS[0], KEYS[1]]
    assert names("s3://bucket/d*/[bc]") == [KEYS[1], KEYS[2]]
    assert names("s3://bucket/*/?.txt") == [KEYS[5]]


@pytest.mark.parametrize("name", ["dump/a", "dum", "nothing", "dump/*.xml", "**/*.xml"])
def test_nothing_there(name: str, texts: Path) -> None:
    with pytest.raises(DataError, match=r"s3://bucket/.*: (no object matches|there is no such object)"):
        find(TextInput(inputs=(f"s3://bucket/{name}",)))


def test_other_mistakes(texts: Path, server: ObjectServer) -> None:
    with pytest.raises(ConfigError, match="without empty parts"):
        find(TextInput(inputs=("s3://bucket/a//b",)))
    with pytest.raises(DataError, match="there is no bucket 'wrong'"):
        find(TextInput(inputs=("s3://wrong/dump",)))
    with pytest.raises(DataError, match=r"named by .* and by"):
        find(TextInput(inputs=("s3://bucket/dump", "s3://bucket/dump/*.jsonl")))
    server.put("saved/state.json", b"{}")
    with pytest.raises(DataError, match=r"name its files, as in s3://bucket/saved/\*\.arrow"):
        find(TextInput(inputs=("s3://bucket/saved",)))


def test_the_same_documents_as_from_files(texts: Path) -> None:
    def read(inputs: str, part: str = "") -> list[tuple[str, str, int, int]]:
        settings = TextInput(inputs=(inputs,))
        found = pieces_of(settings, find(settings), PreparePart.parse(part)) if part else None
        place = inputs.removesuffix("dump")
        return [(r.text, r.path.removeprefix(place), r.position, r.consumed) for r in records(settings, pieces=found)]

    local = read(str(texts / "dump"))
    assert len(local) == 3051
    assert read("s3://bucket/dump") == local
    for part in ("1/3", "2/3", "3/3"):
        assert read("s3://bucket/dump", part) == read(str(texts / "dump"), part)


def test_their_hashes(texts: Path, server: ObjectServer) -> None:
    def entries(inputs: str) -> list[dict[str, object]]:
        return hashed(input_facts([source.path for source in find(TextInput(inputs=(inputs,)))]))()

    expected = entries(str(texts / "dump"))
    assert [{**entry, "path": ""} for entry in entries("s3://bucket/dump")] == [{**e, "path": ""} for e in expected]
    facts = input_facts([source.path for source in find(TextInput(inputs=("s3://bucket/dump",)))])
    server.put(KEYS[2], b"three\n\nfour\n")
    with pytest.raises(DataError, match=r"s3://bucket/dump/b/d\.txt: changed while it was read"):
        hashed(facts)()
