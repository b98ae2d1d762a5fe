"""``benchmarks/data``: the dry runs of what measures preparations and many files, and the model that scales them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe_core.data.prepare import PreparePart
from recipe_megatron_gpt.prepare.indexed import prepare
from recipe_megatron_gpt.prepare.parts import prepare_part
from recipe_megatron_gpt.settings import GptPrepare

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LINES = 70
"""Documents of a file, which 2, 5 and 7 parts of three such files divide."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script or module of ``benchmarks/data`` by its name."""
    for folder in (BENCHMARKS, BENCHMARKS / "data"):
        monkeypatch.syspath_prepend(folder)
    return importlib.import_module


def dry(name: str, tmp_path: Path) -> list[str]:
    """The lines that a dry run prints; it may store nothing."""
    results = {path: path.read_bytes() for path in (BENCHMARKS / "results").iterdir()}
    paths = [str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "RECIPE_CACHE": str(tmp_path / "cache")}
    environment.pop("RECIPE_DATA", None)
    line = [sys.executable, str(BENCHMARKS / "data" / f"{name}.py"), "--dry"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in (BENCHMARKS / "results").iterdir()} == results
    return done.stdout.splitlines()


def rows(lines: list[str], columns: int) -> list[list[str]]:
    """The cells of the table that a dry run prints at its end, without the head."""
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert {len(row) for row in table} == {columns}
    return table[2:]


def test_one_part_is_measured_without_peers(tmp_path: Path) -> None:
    table = rows(dry("prepare_part", tmp_path), 6)
    cases = [(row[0].partition(",")[0], row[1]) for row in table if not row[1].startswith("gigatoken")]
    assert cases == [
        ("part", "tokenizers"), ("start", "tokenizers"), ("start", "tokenizers, empty cache"),
        ("beyond the start", "tokenizers"),
    ]  # fmt: skip
    assert {row[5] for row in table} == {"-"}


def test_the_scale_is_simulated_with_costs_measured_there(tmp_path: Path) -> None:
    table = [row for row in rows(dry("scale", tmp_path), 8) if row[0] == "tokenizers"]
    shares = {row[1]: float(row[3]) for row in table}
    assert list(shares) == [
        f"{files}, {n} parts" for files in ("10,000 files", "one file") for n in ("4,000", "20,000")
    ]
    assert all(0 <= share < 1.1 for share in shares.values())  # little text tells nothing about speed


def test_many_files_are_counted_to_their_first_batch(tmp_path: Path) -> None:
    table = rows(dry("many_files", tmp_path), 6)
    kinds = ("12 pairs of token files", "12 BERT's shards")
    assert [row[:2] for row in table] == [[kind, side] for kind in kinds for side in ("empty cache", "again", "bare")]


@pytest.mark.parametrize("parts", [1, 2, 5, 7])
def test_the_model_knows_how_many_bytes_a_part_hashes(parts: int, tmp_path: Path, module: Any) -> None:
    scale_model = module("scale_model")
    settings = three_files(tmp_path)
    total = sum(path.stat().st_size for path in (tmp_path / "texts").iterdir())
    division = scale_model.Division(total, 3, parts)
    for number in range(1, parts + 1):
        made = prepare_part(settings(f"part-{number}"), PreparePart(number, parts))
        whole = sum(entry["bytes"] for entry in made["inputs"])
        pieces = sum(piece["stop"] - piece["start"] for piece in made["pieces"])
        assert scale_model.hashed_bytes(division, number) == whole + pieces


def test_workers_take_the_next_part_as_soon_as_they_are_free(module: Any) -> None:
    scale_model = module("scale_model")
    assert scale_model.makespan([4.0, 1.0, 1.0, 1.0], workers=2) == 4.0
    assert scale_model.makespan([1.0, 1.0, 1.0, 4.0], workers=2) == 5.0
    assert scale_model.makespan([1.0] * 3, workers=10) == 1.0
    assert scale_model.makespan([1.0] * 3, workers=10, dispatch=2.0) == 7.0
    costs = scale_model.Costs(*[0.0] * 2, encode=1.0, digest=0.5, **dict.fromkeys(MERGE, 0.0))
    division = scale_model.Division(total=8_000_000, files=1, parts=4)
    # the first part hashes the file as a whole and by pieces
    assert scale_model.part_seconds(costs, division) == [2 + 8.0, 2 + 1.0, 2 + 1.0, 2 + 1.0]
    assert scale_model.floor(costs, division, workers=4) == 2.0
    assert scale_model.linear_until(costs, scale_model.Division(8_000_000, 8, 4), spread=0.0, dispatch=0.0) == 2


MERGE = ("merge_start", "merge_part", "merge_file", "copy", "index")


def test_what_a_megabyte_costs_is_the_difference_of_two_texts(module: Any) -> None:
    prepare_part = module("prepare_part")
    long = {
        side: {"processor": times, "wall": times}
        for side, times in {"tokenizers": [3.0, 4.0], "curator": [9.0, 9.0]}.items()
    }
    short = {side: {"processor": [1.0, 1.0], "wall": [2.0, 3.0]} for side in (*long, "tokenizers, empty cache")}
    found = prepare_part.summary(prepare_part.beyond(long, short), 10_000_000)
    assert found["sides"]["tokenizers"]["mb_per_processor_second"] == 4.0
    assert found["sides"]["curator"]["wall_s"] == 6.5
    assert found["times_faster_processor"] == {"tokenizers": {"curator": 3.33}}
    assert found["times_faster_wall"] == {"tokenizers": {"curator": 6.5}}


def test_a_part_is_compared_as_the_files_of_its_merge(tmp_path: Path, module: Any) -> None:
    settings = three_files(tmp_path)
    prepare_part(settings("part"), PreparePart(1, 1))
    prepare(settings("whole"))
    whole = tmp_path / "whole"
    expected = (whole / "tokens.bin").read_bytes(), (whole / "tokens.idx").read_bytes()
    assert module("prepare_part").written("tokenizers", tmp_path / "part") == expected


def three_files(folder: Path) -> Any:
    """Write three equal files and a tokenizer; returns the function of the settings by the name of the output."""
    from recipe_megatron_gpt.data.corpus import train_tokenizer

    lines = [json.dumps({"text": f"Document {number:05} has snow."}) + "\n" for number in range(LINES)]
    (folder / "texts").mkdir()
    for name in "abc":
        (folder / "texts" / f"{name}.jsonl").write_text("".join(lines))
    train_tokenizer(lines, 300).save(str(folder / "tokenizer.json"))

    def settings(name: str) -> GptPrepare:
        return GptPrepare(
            inputs=(str(folder / "texts"),), tokenizer=str(folder / "tokenizer.json"), output=str(folder / name),
            engine="tokenizers", workers=1,
        )  # fmt: skip

    return settings
