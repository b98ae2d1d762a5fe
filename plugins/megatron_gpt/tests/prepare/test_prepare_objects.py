"""``recipe prepare gpt_indexed`` from and to object storage, as a user types it; the bytes are those of local files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recipe_core.cli.main import main
from recipe_core.testing.objects import Faults, ObjectServer, reach_objects
from recipe_megatron_gpt.data.corpus import train_tokenizer

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'recipe-core[s3]'")
Typed = Callable[..., tuple[int, str, str]]
LINE = ("tokenizer=tokenizer.json", "engine=tokenizers", "workers=1")
NAMES = ("manifest.json", "tokenizer.json", "tokens.bin", "tokens.idx")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with reach_objects(monkeypatch, page=3) as served:
        yield served


@pytest.fixture
def site(tmp_path: Path, texts: list[str], server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in with texts in ``dump``, which are in the bucket too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    lines = "\n".join(json.dumps({"text": text}) for text in texts[:150]).encode()
    Path("dump").mkdir()
    for name, content in {"a.jsonl": lines, "b.jsonl.gz": gzip.compress(lines[:20_000].rpartition(b"\n")[0])}.items():
        Path("dump", name).write_bytes(content)
        server.put(f"dump/{name}", content)
    train_tokenizer(texts, 400).save("tokenizer.json")
    return tmp_path


def objects(server: ObjectServer, prefix: str) -> dict[str, bytes]:
    keys = [key for key in server.buckets["bucket"].objects if key.startswith(prefix)]
    return {key.removeprefix(f"{prefix}/"): server.content(key) for key in keys}


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def without_manifest(found: dict[str, bytes]) -> dict[str, bytes]:
    # which names the inputs
    assert sorted(found) == [*NAMES]
    return {name: content for name, content in found.items() if name != "manifest.json"}


def test_from_and_to_a_bucket(typed: Typed, site: Path, server: ObjectServer) -> None:
    assert typed(*LINE, "inputs=dump", "output=local")[0] == 0
    server.faults = Faults(seed=5, refuse=0.25, cut=0.25)
    code, out, err = typed(*LINE, "inputs=s3://bucket/dump", "output=s3://bucket/sets/one")
    assert code == 0, err
    assert "s3://bucket/sets/one" in out
    assert server.faults.drawn["cut"] > 0
    stored = objects(server, "sets/one")
    assert without_manifest(stored) == without_manifest(files("local"))
    listed, local = (json.loads(found["manifest.json"]) for found in (stored, files("local")))
    assert [{**entry, "path": entry["path"].removeprefix("s3://bucket/")} for entry in listed["inputs"]] == local[
        "inputs"
    ]
    assert (listed["files"], listed["counts"]) == (local["files"], local["counts"])
    assert server.open_uploads == 0
    code, _, err = typed(*LINE, "inputs=s3://bucket/dump", "output=s3://bucket/sets/one")
    assert code == 2
    assert "output: s3://bucket/sets/one exists" in err


def test_parts_from_a_bucket(typed: Typed, site: Path, server: ObjectServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert typed(*LINE, "inputs=s3://bucket/dump", "output=whole")[0] == 0
    for number in (1, 2, 3):
        line = (*LINE, "inputs=s3://bucket/dump", f"output=part{number}", f"part={number}/3")
        assert typed(*line)[0] == 0
    assert main(["prepare", "merge", "s3://bucket/merged", "part2", "part3", "part1"]) == 0
    capfd.readouterr()
    assert without_manifest(objects(server, "merged")) == without_manifest(files("whole"))
    assert json.loads(server.content("merged/manifest.json")) == json.loads(files("whole")["manifest.json"])


def test_a_part_in_a_bucket(typed: Typed, site: Path, server: ObjectServer) -> None:
    assert typed(*LINE, "inputs=dump", "output=local", "part=1/2")[0] == 0
    assert typed(*LINE, "inputs=dump", "output=s3://bucket/part", "part=1/2")[0] == 0
    assert objects(server, "part") == files("local")


def test_several_processes_for_a_bucket(typed: Typed, site: Path, server: ObjectServer) -> None:
    line = (*LINE[:2], "inputs=dump")
    assert typed(*line, "output=local")[0] == 0
    code, _, err = typed(*line, "output=s3://bucket/set", "--on", "local:2", "--parts", "2")
    assert code == 0, err
    assert without_manifest(objects(server, "set")) == without_manifest(files("local"))


def test_a_mistake_is_one_message(typed: Typed, site: Path, server: ObjectServer) -> None:
    for line, expected in {
        ("inputs=s3://bucket/nothing", "output=x"): "s3://bucket/nothing: there is no such object, and none below it",
        ("inputs=dump", "output=s3://wrong/x"): "there is no bucket 'wrong'",
        ("inputs=dump", "output=http://bucket/x"): "expected a path on this machine, got 'http://bucket/x'",
        ("inputs=ftp://x", "output=x"): "expected a path on this machine, got 'ftp://x'",
        ("inputs=dump", "output=s3://bucket/x", "vocab_size=0"): "vocab_size",
    }.items():
        code, _, err = typed(*LINE, *line)
        assert (code, expected in err, "Traceback" in err) == (2, True, False), err
    assert server.keys() == ["dump/a.jsonl", "dump/b.jsonl.gz"]
