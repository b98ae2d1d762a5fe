"""``recipe prepare gpt_indexed`` from Parquet, Arrow and saved data sets: the files are those from JSON lines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.cli.main import main
from recipe_megatron_gpt.data.corpus import train_tokenizer

pyarrow = pytest.importorskip("pyarrow", reason="needs the package of recipe-core[arrow]")
parquet = pytest.importorskip("pyarrow.parquet")

Typed = Callable[..., tuple[int, str, str]]
LINE = ("tokenizer=tokenizer.json", "engine=tokenizers", "workers=1", "json_key=content")
FORMS = ("text.parquet", "text.arrow", "saved")


@pytest.fixture
def site(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the same texts in every format, some of them empty, and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    texts = [*texts[:40], "", " \n", *texts[40:]]
    Path("text.jsonl").write_text("".join(json.dumps({"content": text}) + "\n" for text in texts))
    table = pyarrow.table({"content": texts, "id": range(len(texts))})
    parquet.write_table(table, "text.parquet", row_group_size=20)
    write(table, Path("text.arrow"), pyarrow.ipc.new_file)
    Path("saved").mkdir()
    shards = [table.slice(0, 100), table.slice(100)]
    for number, shard in enumerate(shards):
        write(shard, Path(f"saved/data-{number}.arrow"), pyarrow.ipc.new_stream)
    Path("saved/dataset_info.json").write_text("{}")
    Path("saved/state.json").write_text('{"_data_files": [{"filename": "data-0.arrow"}, {"filename": "data-1.arrow"}]}')
    train_tokenizer(texts, 400).save("tokenizer.json")
    return tmp_path


def write(table: Any, path: Path, new: Callable[..., Any]) -> None:
    with new(path, table.schema) as writer:
        writer.write_table(table, 20)


def files(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.mark.parametrize("words", [(), ("empty_documents=drop",), ("tokenizer=train", "vocab_size=350")])
@pytest.mark.parametrize("form", FORMS)
def test_the_files_equal_those_from_json_lines(site: Path, typed: Typed, form: str, words: tuple[str, ...]) -> None:
    line = LINE[any(word.startswith("tokenizer") for word in words) :]
    for name, output in (("text.jsonl", "lines"), (form, "columns")):
        code, _, err = typed(f"inputs={name}", *line, *words, f"output={output}")
        assert code == 0, err
    lines, columns = files("lines"), files("columns")
    counts = [json.loads(found.pop("manifest.json"))["counts"] for found in (lines, columns)]
    assert columns == lines
    assert counts[1] == {**counts[0], "files": 1 + (form == "saved")}
    assert main(["verify", "columns"]) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("form", FORMS)
def test_merged_parts_equal_one_process(
    site: Path, typed: Typed, form: str, count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert typed(f"inputs={form}", *LINE, "output=whole")[0] == 0
    documents = []
    for number in range(1, count + 1):
        code, _, err = typed(f"inputs={form}", *LINE, f"output=parts/{number}", f"part={number}/{count}")
        assert code == 0, err
        documents.append(json.loads(Path(f"parts/{number}/manifest.json").read_text())["counts"]["documents"])
    assert sum(documents) == 302
    assert max(documents) < 302 or count == 1
    assert main(["prepare", "merge", "merged", *(f"parts/{number}" for number in range(1, count + 1))]) == 0
    assert files("merged") == files("whole")


KILLED = """
import os, sys
from recipe_core.cli.main import main
from recipe_megatron_gpt.prepare import indexed, store

indexed.CHUNK, store.NOTE_EVERY = 1000, 0.0
add, added = store.TokenStore.add, 0

def add_some(self, part):
    global added
    add(self, part)
    added += 1
    if added == 30:
        os.kill(os.getpid(), 9)

store.TokenStore.add = add_some
main(["prepare", "gpt_indexed", *sys.argv[1:]])
"""


@pytest.mark.parametrize("form", FORMS)
def test_a_killed_run_continues_to_the_same_bytes(site: Path, typed: Typed, form: str) -> None:
    line = (f"inputs={form}", *LINE)
    assert typed(*line, "output=whole")[0] == 0
    killed = subprocess.run([sys.executable, "-c", KILLED, *line, "output=out"], timeout=100, check=False)
    assert killed.returncode == -signal.SIGKILL
    entries = [json.loads(text) for text in Path(".out.part/journal.jsonl").read_text().splitlines()]
    assert 0 < entries[-1]["state"]["read"] < 302
    assert typed(*line, "output=out")[0] == 0
    assert files("out") == files("whole")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damage", ["cut", "key", "pointer"])
def test_a_mistake_ends_with_one_message(site: Path, typed: Typed, form: str, damage: str) -> None:
    path = Path(form) if form != "saved" else Path("saved/data-1.arrow")
    line = list(LINE)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "pointer":
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    else:
        line[-1] = "json_key=id"
    code, _, err = typed(f"inputs={form}", *line, "output=out")
    assert code == 2
    assert "Traceback" not in err
    expected = {"cut": "is cut off; get it again", "key": "is of the type int64", "pointer": "a pointer of Git LFS"}
    assert f"{path}: " in err
    assert expected[damage] in err
    assert not Path("out").exists()
