"""Data sets that `recipe prepare` makes for object storage."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from recipe_core.cli.data.stored import address_in, make_stored, overwrites
from recipe_core.data.prepare import Output, hashed, input_facts
from recipe_core.data.prepare.stored import CLAIM
from recipe_core.errors import ConfigError, DataError
from recipe_core.files import home
from recipe_core.files.objects import ObjectError, ObjectPath
from recipe_core.testing.objects import Faults, ObjectServer

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'recipe-core[s3]'")
ADDRESS = "s3://bucket/data/set"
FILES = {"a.bin": b"a" * 1000, "b.bin": b"b" * 10, "sub/c.bin": b"c"}
WHOLE = ["data/set/a.bin", "data/set/b.bin", "data/set/manifest.json", "data/set/sub/c.bin"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "input").write_text("text", encoding="utf-8")
    return tmp_path / "cache"


class Maker:
    """A preparation of ``files`` from one input; counts how often it ran."""

    def __init__(self, source: Path, files: Mapping[str, bytes] = FILES) -> None:
        self.source, self.files, self.ran = source, files, 0

    def __call__(self, folder: str) -> None:
        self.ran += 1
        facts = input_facts([self.source])
        with Output(Path(folder), {"inputs": facts}, reads=[self.source], overwrite=False) as output:
            for name, content in self.files.items():
                (output.folder / name).parent.mkdir(exist_ok=True)
                (output.folder / name).write_bytes(content)
            output.finish({"kind": "bytes", "inputs": hashed(facts)()})

    def store(self, *words: str, address: str = ADDRESS, overwrite: bool = False) -> None:
        make_stored(address, ["bytes", *words], self, overwrite=overwrite)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "input")


def test_words() -> None:
    assert address_in(["x=1", "output=s3://b/c", "output=gs://b/d"]) == "gs://b/d"
    assert (address_in(["output=data/x"]), address_in([])) == ("", "")
    assert [overwrites([word]) for word in ("overwrite=true", "overwrite=False", "x=1")] == [True, False, False]


def test_the_manifest_comes_last(maker: Maker, server: ObjectServer) -> None:
    server.faults = Faults(seed=2, refuse=0.25, cut=0.25)
    maker.store()
    assert server.keys() == WHOLE
    assert {name: server.content(f"data/set/{name}") for name in FILES} == FILES
    assert json.loads(server.content("data/set/manifest.json"))["files"].keys() == FILES.keys()
    written = [
        line.split("?")[0].split("/set/")[1] for line in server.requests if line.startswith(("PUT", "POST /bucket/"))
    ]
    assert (written[0], written[-1]) == (CLAIM, "manifest.json")
    assert not list((home() / "prepared").iterdir())  # nothing stays here


def test_nothing_is_replaced_without_being_told(maker: Maker, server: ObjectServer) -> None:
    maker.store()
    with pytest.raises(ConfigError, match=f"output: {ADDRESS} exists; name another, or set overwrite=true"):
        maker.store()
    other = Maker(maker.source, {"a.bin": b"new"})
    server.put("data/set/of another", b"")
    with pytest.raises(ConfigError, match=r"holds what its manifest.json does not list \(of another\)"):
        other.store(overwrite=True)
    ObjectPath.parse(f"{ADDRESS}/of another").delete()
    other.store(overwrite=True)
    assert server.keys() == WHOLE[0:3:2]
    assert server.content("data/set/a.bin") == b"new"
    assert (maker.ran, other.ran) == (1, 1)


@pytest.mark.parametrize("name", ["x.txt", "manifest.json"])
def test_what_others_wrote_stays(name: str, maker: Maker, server: ObjectServer) -> None:
    server.put(f"data/set/{name}", b'{"files": 1}')
    with pytest.raises(ConfigError, match=r"was not made by|did not write"):
        maker.store(overwrite=True)
    assert (server.keys(), maker.ran) == ([f"data/set/{name}"], 0)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
def test_an_interruption_anywhere(
    at: int, overwrite: bool, maker: Maker, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overwrite:
        Maker(maker.source, {"a.bin": b"earlier", "gone.bin": b""}).store("earlier")
    before, calls = dict(server.buckets["bucket"].objects), 0

    def counted(method: str) -> None:
        original = getattr(ObjectPath, method)

        def call(self: ObjectPath, *args: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return original(self, *args, **options)

        monkeypatch.setattr(ObjectPath, method, call)

    for method in ("write", "delete"):  # a small file is written, too
        counted(method)
    with pytest.raises(KeyboardInterrupt):
        maker.store(overwrite=overwrite)
    if "data/set/manifest.json" in server.buckets["bucket"].objects:  # the earlier set, still whole
        assert all(server.buckets["bucket"].objects[key] == stored for key, stored in before.items())
    maker.store(overwrite=overwrite)
    assert server.keys() == WHOLE
    assert {name: server.content(f"data/set/{name}") for name in FILES} == FILES
    assert maker.ran == 1 or at == 1  # no file is made twice


def test_an_input_that_changed_meanwhile(
    maker: Maker, server: ObjectServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ObjectError("broken")

    with monkeypatch.context() as patched:
        patched.setattr("recipe_core.data.prepare.stored.upload", broken)
        with pytest.raises(ObjectError, match="broken"):
            maker.store()
    maker.source.write_text("other", encoding="utf-8")
    maker.files = {"a.bin": b"other"}
    maker.store()
    assert "input: has changed; the data set is made again" in capsys.readouterr().err
    assert (server.keys(), server.content("data/set/a.bin"), maker.ran) == (WHOLE[0:3:2], b"other", 2)


def test_a_mistake_leaves_nothing(maker: Maker, server: ObjectServer) -> None:
    def fail(folder: str) -> None:
        raise DataError("no such input")

    with pytest.raises(DataError, match="no such input"):
        make_stored(ADDRESS, ["bytes"], fail)
    assert server.keys() == []


def test_said_before_work_begins(maker: Maker, server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is a whole bucket; name a prefix in it, as s3://bucket/data"):
        maker.store(address="s3://bucket")
    with pytest.raises(ObjectError, match="there is no bucket 'wrong'"):
        maker.store(address="s3://wrong/set")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    with pytest.raises(ObjectError, match="access was denied"):
        maker.store()
    assert maker.ran == 0


def test_another_command_at_the_same_place(
    maker: Maker, server: ObjectServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(folder: str) -> None:
        Path(f"{folder}.part").mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_stored(ADDRESS, ["other words"], interrupt)
    (left,) = (cache / "prepared").iterdir()
    hold = "import sys; from pathlib import Path; from recipe_core.files import lock_now\n"
    hold += "lock = lock_now(Path(sys.argv[1])); print(bool(lock), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(left / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "True\n"
        with pytest.raises(ConfigError, match=r"another `recipe prepare` makes it, or was interrupted"):
            maker.store()
        other.communicate()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "elsewhere")
        with pytest.raises(ConfigError, match=r"give the same command on that machine.*delete s3://.*upload\.json"):
            maker.store()
    assert maker.ran == 0
    maker.store()  # its process has ended
    assert (server.keys(), left.exists()) == (WHOLE, False)
