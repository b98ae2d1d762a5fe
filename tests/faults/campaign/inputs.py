"""Everything that the families damage: runs, checkpoints of every format, data sets, texts, tables, tokenizers."""

from __future__ import annotations

import bz2
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import torch
from forked import copied, recipe
from safetensors.torch import load_file

STEPS = 6
SHORT = (
    f"train.steps={STEPS}", "train.log_every=1", "train.eval_every=2", "train.save_every=2", "train.timeout=240",
    "model.dropout=0.1",
)  # fmt: skip
GPT = ("megatron_gpt:tiny", *SHORT, "model.hidden=32")
RUNS = {
    "run, dcp": (*GPT, "checkpoint=dcp"),
    "run, single": (*GPT, "checkpoint=single"),
    "run, neuron_bert": ("bert_dp:tiny", *SHORT, "checkpoint=neuron_bert", "data.files={}/bert"),
    "run, hf_trainer": ("hf_finetune:tiny", *SHORT, "data.folder={}/tables/tsv"),
}
"""Run folders that have two steps left, by the words of their line; ``{}`` stands for the folder of all inputs."""
CONVERTED = {
    "dcp": ("dcp",), "single": ("single",), "hf": ("hf", "--drop", "optimizer"),
    "hf, several files": ("hf", "shard_gb=1e-4", "--drop", "optimizer"),
    "megatron": ("megatron", "tp=2", "pp=2"), "nxd": ("nxd", "tp=2"), "nxd, old": ("nxd", "layout=old", "pp=2"),
    "nxd, xser": ("nxd", "tp=2", "xser=true"), "xser": ("xser",),
}  # fmt: skip
"""Checkpoints of every format, by the words of ``recipe convert --to``."""
DATA = {"gpt": "gpt/text", "bert": "bert", "packed": "packed"}
"""Prepared data sets."""
TABLES = ("tsv", "csv", "jsonl", "json", "parquet")
TEXTS = ("txt", "jsonl", "txt.gz", "txt.bz2", "xml", "parquet", "arrow")
TOKENIZERS = ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt")
CACHED = {
    "cache of gpt": ("megatron_gpt:tiny", "train.steps=2", "train.log_every=1", "model.hidden=32"),
    "cache of hf": ("hf_finetune:tiny", "train.steps=2"),
}
"""Runs that make a cache, and read it."""
WORDS = (
    "the", "a", "cat", "dog", "runs", "over", "under", "green", "house", "river", "stone", "walks", "fast", "slow",
    "blue", "old", "new", "tree",
)  # fmt: skip


def run_words(kind: str, here: Path) -> list[str]:
    """The line of a run of :data:`RUNS`, without ``--out``."""
    return ["run", *(word.format(here) for word in RUNS[kind])]


def prepare(base: Path) -> None:
    """Make them, once for all families."""
    here = base / "inputs"
    if here.exists():
        return
    here.mkdir()

    def done(*words: str, **environment: str) -> None:
        ended = recipe(list(words), here, environment)
        assert ended.code == 0, ended.text

    documents = _documents()
    _texts(here, documents)
    _data(here, done)
    _tables(here / "tables")
    for name in RUNS:
        done(*run_words(name, here), "--out", str(here / f"whole {name}"))
        done(*run_words(name, here), "train.stop_after=4", "--out", str(here / name))
    source = here / "run, dcp" / "checkpoints" / "step-4"
    for name, words in CONVERTED.items():
        done("convert", str(source), str(here / name), "--to", *words)
        bare = copied(here / name, here / f"bare {name}")
        for file in bare.rglob("checkpoint.json"):
            file.unlink()
    weights = copied(here / "bare hf", here / "bare hf, bin") / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    for name, words in CACHED.items():
        done("run", *words, "--out", str(here / f"whole {name}"), RECIPE_CACHE=str(here / name))


def _documents() -> list[str]:
    chance = random.Random(5)
    sentences = [" ".join(chance.choices(WORDS, k=8)).capitalize() + "." for _ in range(900)]
    return [" ".join(sentences[n : n + 9]) for n in range(0, 900, 9)]


def _texts(here: Path, documents: list[str]) -> None:
    folder = here / "texts"
    folder.mkdir()
    plain = "\n\n".join(documents)
    pages = "".join(
        f"<page><title>{n}</title><ns>0</ns><id>{n}</id><revision><id>{n}</id><text>{text}</text></revision></page>\n"
        for n, text in enumerate(documents, 1)
    )
    rows = "".join(json.dumps({"text": text}) + "\n" for text in documents)
    (folder / "text.txt").write_text(plain)
    (folder / "text.jsonl").write_text(rows)
    (folder / "text.txt.gz").write_bytes(gzip.compress(plain.encode(), mtime=0))
    (folder / "text.txt.bz2").write_bytes(bz2.compress(plain.encode()))
    (folder / "text.xml").write_text(f"<mediawiki>\n{pages}</mediawiki>\n")
    _columns(folder, documents)


def _columns(folder: Path, documents: list[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": documents})
    pyarrow.parquet.write_table(table, folder / "text.parquet", row_group_size=20, write_page_checksum=True)
    with pyarrow.ipc.new_stream(folder / "text.arrow", table.schema) as writer:
        writer.write_table(table, 20)


def _data(here: Path, done: Callable[..., None]) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    pieces = here / "tokenizers"
    pieces.mkdir()
    (pieces / "vocab.txt").write_text("\n".join([*special, *WORDS]) + "\n")
    text = (f"inputs={here}/texts/text.txt", "documents=blank_line", "workers=1")
    done("prepare", "gpt_indexed", *text, "tokenizer=train", "vocab_size=300", f"output={here}/gpt/text")
    done(
        "prepare", "bert_hdf5", *text, f"vocabulary={pieces}/vocab.txt", "sequence=64", "max_predictions=10",
        "samples_per_shard=100", "dupe_factor=1", f"output={here}/bert",
    )  # fmt: skip
    done("prepare", "bert_packed", f"inputs={here}/bert", "workers=1", f"output={here}/packed")
    trained = copied(here / "gpt" / "text" / "tokenizer.json", pieces / "tokenizer.json")
    model = json.loads(trained.read_text())["model"]
    vocabulary = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    (pieces / "vocab.json").write_text(json.dumps(vocabulary))
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    (pieces / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{pair}\n" for pair in merges))
    for name in TEXTS:
        done(*text_words(here / "texts" / f"text.{name}", here / f"tokens of {name}", here))


def text_words(path: Path, output: Path, here: Path) -> list[str]:
    """The line that makes token files of a text."""
    words = ["prepare", "gpt_indexed", f"inputs={path}", f"tokenizer={here}/tokenizers/tokenizer.json", "workers=1"]
    return [*words, "documents=blank_line", f"output={output}/text"]


def _tables(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    chance = random.Random(6)
    for kind in TABLES:
        (folder / kind).mkdir(parents=True)
        for split, count in (("train", 48), ("validation", 16)):
            rows = [
                {"sentence1": " ".join(chance.choices(WORDS, k=6)), "sentence2": " ".join(chance.choices(WORDS, k=5)),
                 "label": str(n % 2)}
                for n in range(count)
            ]  # fmt: skip
            path = folder / kind / f"{split}.{kind}"
            if kind == "parquet":
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
            elif kind in ("json", "jsonl"):
                path.write_text(json.dumps(rows) if kind == "json" else "".join(json.dumps(r) + "\n" for r in rows))
            else:
                mark = "\t" if kind == "tsv" else ","
                path.write_text(
                    "".join(mark.join(line) + "\n" for line in [list(rows[0]), *(r.values() for r in rows)])
                )
