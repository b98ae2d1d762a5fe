"""Reading samples: all kinds of files give the same, and each mistake is one message with its place."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.errors import DataError
from recipe_core.hooks.registry import load as plugins
from recipe_core.settings.job import resolve
from recipe_hf_finetune.data.pairs import _read, pairs
from recipe_hf_finetune.data.splits import Corpus, load
from recipe_hf_finetune.settings import TextClassification

ROWS = [
    ('He said "no', "Quotes are text", "good"),
    ("Two\u2028lines", "a  b", "bad"),
    ("Komma, here", "und Ümläute", "good"),
]
HEADING = ("sentence1", "sentence2", "label")


def tsv(path: Path) -> None:
    lines = ["\t".join(fields) for fields in (HEADING, *ROWS)]
    path.write_bytes(("\ufeff" + "\r\n".join(lines) + "\r\n").encode())


def table(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADING, *ROWS])


def objects(path: Path) -> None:
    path.write_text("".join(json.dumps(dict(zip(HEADING, row, strict=True))) + "\n" for row in ROWS))


def array(path: Path) -> None:
    path.write_text(json.dumps([dict(zip(HEADING, row, strict=True)) for row in ROWS], indent=1))


def parquet(path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {name: [row[number] for row in ROWS] for number, name in enumerate(HEADING)}
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)


KINDS: dict[str, Callable[[Path], None]] = {
    ".tsv": tsv, ".csv": table, ".jsonl": objects, ".json": array, ".parquet": parquet
}  # fmt: skip


@pytest.mark.parametrize("ending", KINDS)
def test_every_kind_of_file_gives_the_same(tmp_path: Path, ending: str) -> None:
    for split in ("train", "dev"):
        KINDS[ending](tmp_path / f"{split}{ending}")
    corpus = load(TextClassification(folder=str(tmp_path)))
    assert corpus.labels == ("bad", "good")
    assert corpus.splits["train"].texts == ([row[0] for row in ROWS], [row[1] for row in ROWS])
    assert corpus.splits["validation"].labels == [1, 0, 1]


def test_microsofts_files(data: Path) -> None:
    corpus = load(TextClassification(folder=str(data / "mrpc"), task="mrpc"))
    assert {split: len(examples) for split, examples in corpus.splits.items()} == {"train": 4076, "validation": 1725}
    assert Counter(corpus.splits["validation"].labels or ()) == {1: 1147, 0: 578}  # as in the README of the corpus
    assert any('"' in text for text in corpus.splits["train"].texts[0])


def test_cola_without_a_heading(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("gj04\t1\t\tThey drank the pub dry.\ngj04\t0\t*\tThey drank the pub.\n")
    train = load(TextClassification(folder=str(tmp_path), task="cola")).splits["train"]
    assert (train.texts, train.labels) == ((["They drank the pub dry.", "They drank the pub."],), [1, 0])


def test_hidden_labels_of_a_test_split(tmp_path: Path) -> None:
    for name, label in (("train", "0"), ("validation", "1"), ("test", "-1")):
        (tmp_path / f"{name}.csv").write_text(f"sentence,label\nA b,{label}\nC d,1\n")
    assert load(TextClassification(folder=str(tmp_path), task="sst2")).splits["test"].labels is None


def test_values_of_a_regression(tmp_path: Path) -> None:
    for name in ("train", "validation"):
        (tmp_path / f"{name}.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "label": 3.2}\n')
    assert load(TextClassification(folder=str(tmp_path), task="stsb")).splits["train"].labels == [3.2]


GOOD = "sentence1\tsentence2\tlabel\na\tb\t0\nc\td\t1\n"
BAD = [
    (GOOD.replace("label", "class"), "", "train.tsv: lacks the column label; it has sentence1, sentence2, class"),
    (GOOD.replace("sentence", "s"), "", "has the columns s1, s2, label, and none of sentence1 and sentence2"),
    (GOOD.replace("\t1\n", "\t7\n"), "mrpc", "train.tsv, line 3: label '7' is none of not_equivalent, equivalent"),
    (GOOD.replace("\t1\n", "\tmaybe\n"), "mrpc", "line 3: label 'maybe' is none of not_equivalent, equivalent"),
    ("sentence1\tsentence2\tlabel\n", "", "train.tsv: holds no sample"),
    ("", "", "train.tsv: holds no sample"),
    (GOOD.replace("c\td", "c"), "", "train.tsv, line 3: has 2 fields, and the heading has 3"),
    (GOOD.replace("\t1\n", "\t0\n"), "", "all samples have the label '0'; expected two or more"),
    (GOOD.replace("\t1\n", "\tx\n"), "stsb", "line 3: label: expected a number, got 'x'"),
]


@pytest.mark.parametrize(("text", "task", "message"), BAD)
def test_every_mistake_names_its_place(tmp_path: Path, text: str, task: str, message: str) -> None:
    (tmp_path / "train.tsv").write_text(text)
    (tmp_path / "validation.tsv").write_text(GOOD)
    job = resolve(plugins(), "hf_finetune:tiny", [f"data.folder={tmp_path}", f"data.task={task}"])
    assert job.facts.data is not None
    (problem,) = job.facts.data.problems
    assert message in problem
    assert str(tmp_path) in problem


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.csv", b'sentence,label\n"a,0\n', "line 2: is not CSV"),
        ("train.jsonl", b'{"sentence": "a", "label": 0}\n{"sentence"\n', "train.jsonl, line 2: is not JSON"),
        ("train.json", b"[1]", "train.json, row 1: expected an object of columns, got int"),
        ("train.json", rb'[{"sentence": "\ud800", "label": 0}]', "row 1: 'sentence': holds half of a surrogate pair"),
        ("train.jsonl", rb'{"sentence": "a", "label": "\udc00"}', "row 1: 'label': holds half"),
        ("train.tsv", b"sentence\tlabel\n\xff\t1\n", "train.tsv: is no text in UTF-8"),
        ("train.jsonl", b'{"sentence": 3, "label": 0}\n{"sentence": "b", "label": 1}', "sentence: expected text, got"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "validation.csv").write_text("sentence,label\na,0\nb,1\n")
    with pytest.raises(DataError, match=message):
        load(TextClassification(train=str(tmp_path / name), validation=str(tmp_path / "validation.csv")))


def test_a_label_that_only_validation_has(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(GOOD)
    (tmp_path / "validation.tsv").write_text(GOOD.replace("\t1\n", "\t2\n"))
    with pytest.raises(DataError, match=r"validation.tsv, line 3: label '2' is none of 0, 1"):
        load(TextClassification(folder=str(tmp_path)))


def test_settings_that_exclude_each_other() -> None:
    for settings, message in (
        ({"folder": "a", "train": "b", "validation": "c"}, "folder: files are named too"),
        ({"train": "b"}, "validation: expected a file"),
        ({"validation": "b"}, "train: validation or test samples are named"),
        ({"labels": ("one",)}, "labels: expected two or more"),
    ):
        with pytest.raises(ValueError, match=message):
            TextClassification(**settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return load(TextClassification(pairs=400), tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("traced", [True, False])
def test_padding_as_suits_the_engine(traced: bool) -> None:
    """By default, samples are padded to one length only for an engine that compiles a graph for each shape."""
    assert [TextClassification(pad_to_max_length=pad).pads(traced) for pad in (True, False, None)] == [
        True, False, traced,
    ]  # fmt: skip


def test_pairs_of_pythons_text(made: Corpus) -> None:
    for split, count in (("train", 400), ("validation", 100)):
        examples = made.splits[split]
        assert len(examples) == count
        assert Counter(examples.labels or ()) == {0: count // 2, 1: count // 2}
    texts = {split: {t for column in e.texts for t in column} for split, e in made.splits.items()}
    assert texts["train"] & texts["validation"] == set()


def test_pairs_whose_file_was_damaged_are_not_read(tmp_path: Path) -> None:
    """A flipped bit in a sentence or a label used to change losses silently; now the pairs are made again."""
    before = pairs(40, tmp_path)
    (path,) = tmp_path.glob("sentence-pairs-*.jsonl")
    content = path.read_bytes()
    for at in (12, len(content) // 2, len(content) - 4):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(DataError, match="is damaged; remove it to have it made again"):
            _read(path)
    assert pairs(40, tmp_path) == before
    assert path.read_bytes() == content


def test_pairs_are_the_same_in_every_process() -> None:
    """The hash seed, which orders sets of words, differs between processes."""
    code = """
import random
from recipe_hf_finetune.data.pairs import _pairs
about = ["socket", "thread", "parser", "number", "window"]
documents = [[f"The {one} reads data from file {n}.", f"If {one} fails, an error is raised in {n}."]
             for n in range(9) for one in about]
print(list(_pairs(documents, random.Random(5))))
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        for seed in ("1", "2")
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert outputs[0].stdout.count(b"), (") > 50
