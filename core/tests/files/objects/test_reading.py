"""An object that is read as a file."""

from __future__ import annotations

import io
from hashlib import sha256
from random import Random

import pytest

from recipe_core.files import digest
from recipe_core.files.objects import ObjectChangedError, ObjectPath, reading
from recipe_core.files.objects.reading import ObjectFile
from recipe_core.testing.objects import Faults, ObjectServer

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'recipe-core[s3]'")
WHOLE = Random(1).randbytes(300_000)
PLACE = ObjectPath("s3", "bucket", "a/b.bin")


@pytest.fixture
def file(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectFile:
    monkeypatch.setattr(reading, "_FIRST", 1000)
    monkeypatch.setattr(reading, "_MOST", 20_000)
    server.put("a/b.bin", WHOLE)
    return ObjectFile(PLACE, PLACE.stat())


def test_from_the_start_to_the_end(file: ObjectFile, server: ObjectServer) -> None:
    with file.open() as opened:
        assert b"".join(iter(lambda: opened.read(500), b"")) == WHOLE
        assert (opened.read(1), opened.tell()) == (b"", len(WHOLE))
    assert server.served["bucket/a/b.bin"] == len(WHOLE)  # each byte once
    blocks = [line.rpartition("=")[2].split("-") for line in server.requests if "bytes=" in line]
    lengths = [int(stop) - int(start) + 1 for start, stop in blocks]
    assert lengths[:6] == [1000, 2000, 4000, 8000, 16000, 20000]
    assert max(lengths) == 20_000


def test_pieces_from_anywhere(file: ObjectFile) -> None:
    random, like = Random(2), io.BytesIO(WHOLE)
    with file.open() as opened:
        for _ in range(200):
            if random.random() < 0.5:
                at = random.randrange(len(WHOLE) + 10)
                assert opened.seek(at) == like.seek(at)
            length = random.choice([1, 10, 999, 5000, 30_000])
            assert opened.read(length) == like.read(length)
            assert opened.tell() == like.tell()
        assert opened.seek(-5, io.SEEK_END) == len(WHOLE) - 5
        assert (opened.read(), opened.seek(0), opened.seek(3, io.SEEK_CUR)) == (WHOLE[-5:], 0, 3)


def test_a_few_bytes_cost_one_small_request(file: ObjectFile, server: ObjectServer) -> None:
    with file.open() as opened:
        assert opened.read(4) == WHOLE[:4]
        assert opened.read(100) == WHOLE[4:104]
    assert server.served["bucket/a/b.bin"] == 1000


def test_faults_change_nothing(file: ObjectFile, server: ObjectServer) -> None:
    server.faults = Faults(seed=3, refuse=0.2, cut=0.2, fail=0.1)
    assert digest(file) == sha256(WHOLE).hexdigest()
    with file.open() as opened:
        assert opened.read() == WHOLE
    assert server.faults.drawn["cut"] > 0


def test_an_object_that_changes(file: ObjectFile, server: ObjectServer) -> None:
    with file.open() as opened:
        assert opened.read(10) == WHOLE[:10]
        server.put("a/b.bin", WHOLE[::-1])
        assert not file.is_unchanged()
        with pytest.raises(ObjectChangedError, match=r"s3://bucket/a/b\.bin: has changed"):
            opened.read()


def test_it_is_only_read(file: ObjectFile) -> None:
    with pytest.raises(ValueError, match="expected the mode rb"):
        file.open("wb")
    with file.open() as opened:
        assert (opened.readable(), opened.seekable(), opened.writable()) == (True, True, False)
        assert opened.name == str(file) == "s3://bucket/a/b.bin"
