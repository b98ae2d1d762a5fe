"""Reading and writing objects, with the faults of a network."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from recipe_core.errors import ConfigError, ExitCode
from recipe_core.files.objects import (
    ObjectChangedError,
    ObjectError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectPath,
    ObjectStat,
    ObjectUnavailableError,
    is_address,
    retries,
    store,
)
from recipe_core.files.objects.ranges import coalesced, pieces
from recipe_core.files.objects.transfers import upload
from recipe_core.testing.objects import Faults, ObjectServer

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'recipe-core[s3]'")
WHOLE = Random(1).randbytes(300_000)
PLACE = ObjectPath("s3", "bucket", "a/b.bin")


def test_addresses() -> None:
    place = ObjectPath.parse("s3://bucket/a/b.c/")
    assert place == ObjectPath("s3", "bucket", "a/b.c") == ObjectPath.parse(Path("s3://bucket/a/b.c"))
    assert (str(place), place.name, place.suffix) == ("s3://bucket/a/b.c", "b.c", ".c")
    assert (place.parent, place.with_suffix(".d").name) == (ObjectPath.parse("s3://bucket/a"), "b.d")
    assert str(ObjectPath.parse("gs://bucket") / "x") == "gs://bucket/x"
    assert [is_address(text) for text in ("az://c/x", "s3:/b/x", "http://b/x", "x/s3://b", "0.5:s3://b/x")] == [
        True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["data", "s3://", "s3:///x", "s3://b//x", "s3://b/../x"])
def test_malformed_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        ObjectPath.parse(text)


def test_ranges() -> None:
    assert coalesced([(5, 7), (0, 2), (2, 3), (9, 9), (6, 8)]) == [(0, 3), (5, 8)]
    assert coalesced([(0, 2), (4, 6)], gap=2) == [(0, 6)]
    assert pieces(3, 10, 4) == [(3, 7), (7, 10)]


def test_reading(server: ObjectServer) -> None:
    server.put("a/b.bin", WHOLE)
    stat = PLACE.stat()
    assert stat.size == len(WHOLE)
    assert stat.etag.startswith('"')
    assert PLACE.read() == PLACE.read(stat) == WHOLE
    assert PLACE.read_range(5, 9, stat.etag) == WHOLE[5:9]
    assert PLACE.read_ranges([(0, 4), (7, 7), (100, 200)]) == [WHOLE[:4], b"", WHOLE[100:200]]
    assert server.served["bucket/a/b.bin"] == 2 * len(WHOLE) + 4 + 104


def test_writing(server: ObjectServer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(Random(2).randbytes(17 << 20))
    assert PLACE.write(b"abc") == PLACE.stat().etag
    assert upload(file, PLACE.parent / "big") == (PLACE.parent / "big").stat().etag
    assert server.content("a/big") == file.read_bytes()
    assert (server.content("a/b.bin"), server.open_uploads) == (b"abc", 0)
    with pytest.raises(ObjectExistsError, match="there is an object already"):
        PLACE.write(b"abc", create=True)
    PLACE.delete()
    PLACE.delete()
    assert not PLACE.exists()
    assert PLACE.write(b"d", create=True)
    assert PLACE.read() == b"d"


def test_listing_over_pages(server: ObjectServer) -> None:
    for number in range(8):
        server.put(f"x/{number}", b"1")
    server.put("x/y/z", b"12")
    server.put("xx", b"")
    place = ObjectPath.parse("s3://bucket/x")
    assert [str(path) for path, _ in place.objects()] == [f"s3://bucket/x/{n}" for n in range(8)] + [
        "s3://bucket/x/y/z"
    ]
    folders, objects = place.children()
    assert folders == [place / "y"]
    assert [path.name for path, _ in objects] == [str(n) for n in range(8)]
    assert (place / "none").objects() == []
    assert not place.exists()


def test_faults_change_nothing(server: ObjectServer, tmp_path: Path) -> None:
    server.put("a/b.bin", WHOLE)
    for number in range(20):
        server.put(f"x/{number:02}", b"1")
    file = tmp_path / "file"
    file.write_bytes(Random(3).randbytes(17 << 20))
    server.faults = Faults(seed=7, refuse=0.2, fail=0.1, cut=0.2, delay=0.1, seconds=0.01)
    assert PLACE.read_ranges([(n, n + 1000) for n in range(0, 100_000, 5000)]) == [
        WHOLE[n : n + 1000] for n in range(0, 100_000, 5000)
    ]
    server.page = 10
    assert len(ObjectPath.parse("s3://bucket/x").objects()) == 20
    for number in range(5):
        PLACE.write(bytes([number]))
        assert PLACE.read() == bytes([number])
    server.faults.refuse = server.faults.fail = 0.15
    upload(file, PLACE.parent / "big")
    assert server.content("a/big") == file.read_bytes()
    assert server.open_uploads == 0
    assert server.faults.drawn["refuse"] > 3
    assert server.faults.drawn["cut"] > 3


def test_bounds(server: ObjectServer) -> None:
    server.put("a/b.bin", WHOLE)
    for fault in ("refuse", "cut"):
        server.faults = Faults(in_a_row=1000, **{fault: 1.0})
        with pytest.raises(ObjectUnavailableError, match=r"10 tries in \d s") as caught:
            PLACE.read_range(0, 10)
        assert caught.value.exit_code == ExitCode.STOPPED
        assert server.faults.drawn[fault] == retries.TRIES


def test_failed_upload_is_aborted(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(17 << 20))
    assert not PLACE.exists()
    monkeypatch.setattr("recipe_core.files.objects.store.TRIES", 0)
    monkeypatch.setattr(server, "faults", _RefusesParts())
    with pytest.raises(ObjectUnavailableError):
        upload(file, PLACE)
    assert server.open_uploads == 0
    assert server.keys() == []


class _RefusesParts(Faults):
    def draw(self, request: str) -> str:  # type: ignore[override]
        return "refuse" if "partNumber=2" in request else "none"


def test_changed_object(server: ObjectServer) -> None:
    server.put("a/b.bin", WHOLE)
    stat = PLACE.stat()
    server.put("a/b.bin", WHOLE[::-1])
    with pytest.raises(ObjectChangedError, match=r"s3://bucket/a/b.bin: has changed since it was opened"):
        PLACE.read_range(0, 10, stat.etag)
    with pytest.raises(ObjectChangedError):
        PLACE.read(ObjectStat(stat.size, stat.etag))


def test_range_past_the_end(server: ObjectServer) -> None:
    server.put("a/b.bin", WHOLE)
    with pytest.raises(ObjectError, match=r"it has 300,000 bytes, and those from 299,000 to 301,000 were asked for"):
        PLACE.read_range(299_000, 301_000)
    with pytest.raises(ObjectError, match="416 InvalidRange"):
        PLACE.read_range(400_000, 400_001)


def test_messages(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ObjectMissingError, match=r"^s3://bucket/a/b.bin: not found; expected an object"):
        PLACE.read()
    for request in (ObjectPath.stat, ObjectPath.objects, ObjectPath.read, ObjectPath.delete):
        with pytest.raises(ObjectError, match=r"there is no bucket 'other' at http://127.0.0.1:\d+; check its name"):
            request(ObjectPath.parse("s3://other/x"))
    file = tmp_path / "file"
    file.write_bytes(b"1")
    with pytest.raises(ObjectError, match="there is no bucket 'other'"):
        upload(file, ObjectPath.parse("s3://other/x"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
    for request in (ObjectPath.stat, ObjectPath.objects, ObjectPath.read):
        with pytest.raises(ObjectError, match=r"s3://bucket/a/b.bin: access was denied \(403"):
            request(PLACE)


def test_no_credentials(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/169.254.169.254")  # where no cloud answers
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ObjectError, match="no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET"):
        PLACE.stat()


def test_credentials_of_a_profile(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[work]\naws_access_key_id = test-key\naws_secret_access_key = test-secret\n", encoding="utf-8")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert PLACE.write(b"abc")
    assert server.content("a/b.bin") == b"abc"


def test_wrong_endpoint(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.05)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for request in (ObjectPath.stat, ObjectPath.objects, ObjectPath.read):
        with pytest.raises(ObjectError, match=r"cannot be reached \(no connection.*AWS_ENDPOINT_URL") as caught:
            request(PLACE)
        assert caught.value.exit_code == ExitCode.MISTAKE
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(ConfigError, match="expected http://HOST:PORT or https://HOST, got 'localhost"):
        PLACE.stat()


def test_a_silent_endpoint(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.2)
    monkeypatch.setitem(store._TIMEOUTS, "timeout", timedelta(seconds=0.05))
    monkeypatch.setenv("AWS_REGION", "silent")  # a client of its own
    server.put("a/b.bin", WHOLE)
    server.faults = Faults(delay=1, seconds=0.3)
    with pytest.raises(ObjectUnavailableError, match=r"did not deliver it \(no answer in time"):
        PLACE.stat()
    asked = len(server.requests)
    with pytest.raises(ObjectUnavailableError):
        PLACE.stat()
    assert len(server.requests) == asked + 1  # once: it never answered
    monkeypatch.setitem(store._TIMEOUTS, "timeout", timedelta(seconds=60))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert PLACE.stat().size == len(WHOLE)


def test_without_obstore(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"pip install 'recipe-core\[s3\]'"):
        ObjectPath.parse("s3://another/x").stat()
