"""Parts of ``recipe prepare bert_hdf5`` and ``bert_packed``, and their merges."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from recipe_bert_dp.settings import PrepareHdf5
from recipe_core.cli.main import main
from recipe_core.data.text import TextInput, records


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def prepared(kind: str, output: Path, *words: str) -> Path:
    assert main(["prepare", kind, *words, f"output={output}", "workers=1"]) == 0
    return output


def parts(kind: str, folder: Path, count: int, *words: str) -> list[str]:
    """All parts, made in random order and named in another."""
    numbers = random.Random(count).sample(range(1, count + 1), count)
    paths = [prepared(kind, folder / f"{count}-{number}", *words, f"part={number}/{count}") for number in numbers]
    return [str(path) for path in random.Random(-count).sample(paths, count)]


@pytest.fixture
def words(text: Path, vocabulary: Path, tmp_path: Path) -> list[str]:
    """Settings of bert_hdf5, of two files."""
    blocks = tmp_path / "blocks.txt"
    blocks.write_bytes(b"\r\n\r\nThe old house. A river walks.\r\nThe end.\r\n\r\n\r\nOf mountain. And a house" * 3)
    named = vocabulary.rename(tmp_path / "pieces.txt")
    return [
        f"inputs={text},{blocks}", "documents=blank_line", f"vocabulary={named}", "sequence=64", "max_predictions=10",
        "samples_per_shard=100", "dupe_factor=2", "test_share=0.1",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3, 7, pytest.param(90, marks=pytest.mark.slow)])
def test_merged_shards_equal_those_of_one_process(words: list[str], tmp_path: Path, count: int) -> None:
    whole = prepared("bert_hdf5", tmp_path / "whole", *words)
    folders = parts("bert_hdf5", tmp_path, count, *words)
    assert main(["prepare", "merge", str(tmp_path / "merged"), *folders]) == 0
    assert contents(tmp_path / "merged") == contents(whole)


KILLED = """
import os, sys
from recipe_core.cli.main import main
from recipe_core.data.prepare import output

note, left = output.Output.note, int(sys.argv[1])

def dies(self, entry):
    global left
    note(self, entry)
    left -= 1
    if not left:
        os.kill(os.getpid(), 9)

output.Output.note = dies
main(sys.argv[2:])
"""


def killed(after: int, *words: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(after), *words], capture_output=True, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_killed_part_and_a_killed_merge_continue(words: list[str], tmp_path: Path) -> None:
    whole = prepared("bert_hdf5", tmp_path / "whole", *words)
    folders = parts("bert_hdf5", tmp_path, 2, *words)
    killed(2, "prepare", "bert_hdf5", *words, f"output={tmp_path / 'again'}", "part=1/2", "workers=1")
    again = prepared("bert_hdf5", tmp_path / "again", *words, "part=1/2")
    assert contents(again) == contents(tmp_path / "2-1")
    merged = tmp_path / "merged"
    for entries in (1, 1, 3):
        killed(entries, "prepare", "merge", str(merged), *folders)
        assert not merged.exists()
    assert main(["prepare", "merge", str(merged), *folders]) == 0
    assert contents(merged) == contents(whole)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_too_few_documents_and_damage(words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folders = parts("bert_hdf5", tmp_path, 2, *words)
    path = tmp_path / "2-2" / "sentences.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    capfd.readouterr()
    assert main(["prepare", "merge", str(tmp_path / "merged"), *folders]) == 2
    expected = f"{path}: does not hold the bytes that were written (SHA-256 differs); prepare part 2/2 again"
    assert expected in capfd.readouterr().err
    few = tmp_path / "few.jsonl"
    few.write_text('{"text": "One house."}\n')
    folders = parts("bert_hdf5", tmp_path, 3, f"inputs={few}", *words[1:])
    assert main(["prepare", "merge", str(tmp_path / "merged"), *folders]) == 2
    assert "1 document(s) with text, expected at least" in capfd.readouterr().err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".merged", "merged"))]


@pytest.mark.parametrize("extra", [(), ("max_samples=0",), ("max_samples=1", "sequence=80", "gzip=false")])
@pytest.mark.parametrize("count", [1, 3, 13])
def test_merged_packed_shards_equal_those_of_one_process(
    settings: Callable[..., PrepareHdf5], shards: Path, tmp_path: Path, count: int, extra: tuple[str, ...]
) -> None:
    words = [f"inputs={shards}", "samples_per_shard=150", *extra]
    whole = prepared("bert_packed", tmp_path / "whole", *words)
    folders = parts("bert_packed", tmp_path, count, *words)
    assert main(["prepare", "merge", str(tmp_path / "merged"), *folders]) == 0
    assert contents(tmp_path / "merged") == contents(whole)


def test_narrow_packed_shards_are_widened(tmp_path: Path, write_numbered: Callable[..., int]) -> None:
    # one shard has short samples, of which many fit in a row; the others have long ones
    for number, length in enumerate((8, 1, 4)):
        path = tmp_path / "in" / f"training_{number}.hdf5"
        write_numbered(path, 100 * number, 20)
        with h5py.File(path, "r+") as file:
            mask = file["input_mask"][:]
            mask[:, length:] = 0
            file["input_mask"][:] = mask
            file["masked_lm_positions"][:] = 0
    words = [f"inputs={tmp_path / 'in'}", "samples_per_shard=20", "max_samples=0"]
    whole = prepared("bert_packed", tmp_path / "whole", *words)
    folders = parts("bert_packed", tmp_path, 3, *words)
    assert main(["prepare", "merge", str(tmp_path / "merged"), *folders]) == 0
    assert contents(tmp_path / "merged") == contents(whole)
    sizes = set()
    for path in tmp_path.glob("3-*/training/*.hdf5"):
        with h5py.File(path) as file:
            sizes.add(file["next_sentence_labels"].shape[1])
    assert sizes == {1, 2, 8}


def test_packed_parts_of_other_shards_are_refused(
    tmp_path: Path, write_numbered: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in" / "training.hdf5"
    words = [f"inputs={path}", "samples_per_shard=20"]
    write_numbered(path, 0, 40)
    one = prepared("bert_packed", tmp_path / "one", *words, "part=1/2")
    write_numbered(path, 5, 40)
    two = prepared("bert_packed", tmp_path / "two", *words, "part=2/2")
    capfd.readouterr()
    assert main(["prepare", "merge", str(tmp_path / "merged"), str(one), str(two)]) == 2
    expected = f"{two}: read other bytes from 0 to {path.stat().st_size:,} of {path} than {one}; prepare all parts from"
    assert expected in capfd.readouterr().err


def test_columns_give_the_shards_of_json_lines(words: list[str], text: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the package of recipe-core[arrow]")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [record.text for record in records(TextInput((str(text),), documents="blank_line"))]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=7)
    lines = prepared("bert_hdf5", tmp_path / "lines", f"inputs={tmp_path / 'a.jsonl'}", *words[1:])
    columns = [f"inputs={tmp_path / 'a.parquet'}", *words[1:]]
    whole = prepared("bert_hdf5", tmp_path / "columns", *columns)
    assert main(["prepare", "merge", str(tmp_path / "merged"), *parts("bert_hdf5", tmp_path, 3, *columns)]) == 0
    assert contents(tmp_path / "merged") == contents(whole)
    found = [contents(folder) for folder in (lines, whole)]
    for files in found:
        del files["manifest.json"]
    assert found[0] == found[1]
