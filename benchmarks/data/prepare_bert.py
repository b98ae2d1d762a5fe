"""Text to BERT's HDF5 shards: ``recipe prepare bert_hdf5`` against a straightforward Python of the published algorithm.

Both sides make phase 1 (128 tokens, 20 predictions, every document used 5 times) of the same documents in one process.
The baseline is what the published create_pretraining_data scripts do: token lists of one tokenizer call per line
(Hugging Face's compiled BertWordPieceTokenizer, which transformers' BertTokenizerFast wraps), Python lists per
instance, arrays at the end, written by h5py. It gets the sentences already split, one per line as those scripts ask
for, and in memory; our side reads the packed file, splits the sentences itself, hashes its inputs and outputs, keeps a
journal and has every file on the disk. Both write three files of about equal size.

    PYTHONPATH=benchmarks python benchmarks/data/prepare_bert.py
    PYTHONPATH=benchmarks python benchmarks/data/prepare_bert.py --memory 20 100 400

``--repeat 100`` compares on the text repeated to 100 MB (the baseline needs several GB of memory for it). ``--memory``
measures our peak of memory instead, for the text repeated to each of these sizes in MB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import common
import h5py
import numpy as np

from recipe_bert_dp.prepare.hdf5 import prepare
from recipe_bert_dp.settings import PrepareHdf5
from recipe_core.data.text import sentences

SEQUENCE, PREDICTIONS, DUPES, SHARDS = 128, 20, 5, 3


def texts(path: Path) -> list[str]:
    """Return the documents of a file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


# The baseline.


def baseline(documents: list[list[str]], vocabulary: Path, out: Path, packed: bool) -> int:
    """Write shards of ``documents`` (lists of sentences) in plain Python; return the number of instances."""
    from tokenizers import BertWordPieceTokenizer

    rng = random.Random(1234)
    tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    tokenised = []
    for document in documents:
        lines = [tokenizer.encode(line, add_special_tokens=False).tokens for line in document]
        if lines := [line for line in lines if line]:
            tokenised.append(lines)
    rng.shuffle(tokenised)
    ids = tokenizer.get_vocab()
    words = list(ids)
    instances = []
    for _ in range(DUPES):
        for number in range(len(tokenised)):
            instances += instances_of(tokenised, number, words, rng)
    rng.shuffle(instances)
    for shard in range(SHARDS):
        write_shard(instances[shard::SHARDS], ids, out / f"training_{shard}.hdf5", packed)
    return len(instances)


def instances_of(documents: list[list[list[str]]], number: int, words: list[str], rng: random.Random) -> list[Any]:
    """Return the masked pairs of one document."""
    document = documents[number]
    most = SEQUENCE - 3
    target = rng.randint(2, most) if rng.random() < 0.1 else most
    found, chunk, length, place = [], [], 0, 0
    while place < len(document):
        chunk.append(document[place])
        length += len(document[place])
        if place == len(document) - 1 or length >= target:
            middle = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first = [token for line in chunk[:middle] for token in line]
            second: list[str] = []
            random_next = len(chunk) == 1 or rng.random() < 0.5
            if random_next:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != number:
                        break
                for line in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
                    second.extend(line)
                    if len(second) >= target - len(first):
                        break
                place -= len(chunk) - middle
            else:
                for line in chunk[middle:]:
                    second.extend(line)
            while len(first) + len(second) > most:
                longer = first if len(first) > len(second) else second
                if rng.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            tokens = ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
            segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
            found.append((*masked(tokens, words, rng), segments, random_next))
            chunk, length = [], 0
        place += 1
    return found


def masked(tokens: list[str], words: list[str], rng: random.Random) -> tuple[list[str], list[int], list[str]]:
    """Return the tokens with some replaced, the positions of these, and their original tokens."""
    candidates = [place for place, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(candidates)
    chosen = candidates[: min(PREDICTIONS, max(1, round(len(tokens) * 0.15)))]
    shown = list(tokens)
    for place in chosen:
        if rng.random() < 0.8:
            shown[place] = "[MASK]"
        elif rng.random() >= 0.5:
            shown[place] = words[rng.randint(0, len(words) - 1)]
    chosen.sort()
    return shown, chosen, [tokens[place] for place in chosen]


def write_shard(instances: list[Any], ids: dict[str, int], path: Path, packed: bool) -> None:
    """Write one file in NVIDIA's layout."""
    count = len(instances)
    arrays = {
        "input_ids": np.zeros((count, SEQUENCE), "i4"),
        "input_mask": np.zeros((count, SEQUENCE), "i1"),
        "segment_ids": np.zeros((count, SEQUENCE), "i1"),
        "masked_lm_positions": np.zeros((count, PREDICTIONS), "i4"),
        "masked_lm_ids": np.zeros((count, PREDICTIONS), "i4"),
        "next_sentence_labels": np.zeros(count, "i1"),
    }
    for row, (tokens, positions, labels, segments, random_next) in enumerate(instances):
        arrays["input_ids"][row, : len(tokens)] = [ids[token] for token in tokens]
        arrays["input_mask"][row, : len(tokens)] = [1] * len(tokens)
        arrays["segment_ids"][row, : len(tokens)] = segments
        arrays["masked_lm_positions"][row, : len(positions)] = positions
        arrays["masked_lm_ids"][row, : len(positions)] = [ids[token] for token in labels]
        arrays["next_sentence_labels"][row] = random_next
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip" if packed else None)


# Our side.


def ours(text: Path, vocabulary: Path, out: Path, packed: bool) -> int:
    """Write the same shards with the plugin; return the number of samples."""
    settings = PrepareHdf5(
        inputs=(str(text),), vocabulary=str(vocabulary), output=str(out / "ours"), gzip=packed, test_share=0,
        samples_per_shard=46_000, workers=1,
    )  # fmt: skip
    return int(prepare(settings)["counts"]["training"]["pairs"])


def compare(text: Path, vocabulary: Path, pairs: int, packings: tuple[bool, ...]) -> dict[str, Any]:
    """Time both sides in turns, so that a slow moment of the machine affects both."""
    documents = [sentences(document) for document in texts(text)]
    megabytes = sum(len(document.encode()) for document in texts(text)) / 1e6
    found: dict[str, Any] = {"megabytes": round(megabytes, 2)}
    for packed in packings:
        seconds: dict[str, list[float]] = {"baseline": [], "recipe": []}
        for _ in range(pairs):
            for side in seconds:
                with tempfile.TemporaryDirectory() as folder:
                    begin = time.perf_counter()
                    if side == "baseline":
                        samples = baseline(documents, vocabulary, Path(folder), packed)
                    else:
                        samples = ours(text, vocabulary, Path(folder), packed)
                    seconds[side].append(time.perf_counter() - begin)
                print(
                    f"{'gzip' if packed else 'plain':6}{side:10}{seconds[side][-1]:8.2f} s {samples:,} samples",
                    flush=True,
                )
        ratios = [a / b for a, b in zip(seconds["baseline"], seconds["recipe"], strict=True)]
        found["gzip" if packed else "uncompressed"] = {
            "seconds": {side: [round(s, 2) for s in values] for side, values in seconds.items()},
            "ratio": {"median": round(statistics.median(ratios), 1), "all": [round(r, 1) for r in ratios]},
        }
        print(f"times as fast: {statistics.median(ratios):.1f}")
    return found


def memory(text: Path, vocabulary: Path, sizes: list[int]) -> dict[str, Any]:
    """Return the peak memory of a process that prepares the text, repeated to each size."""
    found = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = repeated(text, size, Path(folder))
            command = [sys.executable, __file__, "--text", str(path), "--vocabulary", str(vocabulary), "--once"]
            begin = time.perf_counter()
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[f"{size} MB"] = {"peak MB": float(out.split()[-1]), "seconds": round(time.perf_counter() - begin, 1)}
            print(size, found[f"{size} MB"], flush=True)
    return found


def repeated(text: Path, size: int, folder: Path) -> Path:
    """Write the documents, repeated up to ``size`` MB, to a file in ``folder``."""
    path = folder / "text.jsonl"
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for document in cycle(texts(text)):
            if written >= size * 1_000_000:
                return path
            written += file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    return path


def once(text: Path, vocabulary: Path) -> None:
    """Prepare once; print the peak of this process' memory in MB, mapped files included."""
    folder = Path(tempfile.mkdtemp(dir=text.parent))
    ours(text, vocabulary, folder, False)
    shutil.rmtree(folder)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_text(parser)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--memory", type=int, nargs="+", default=[])
    parser.add_argument("--repeat", type=int, help="compare on the text repeated to so many MB, uncompressed, instead")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = common.parsed(parser)
    if options.once:
        once(options.text, options.vocabulary)
        return
    result = common.read("prepare_bert")
    if options.memory:
        result["memory"] = memory(options.text, options.vocabulary, options.memory)
    elif options.repeat:
        with tempfile.TemporaryDirectory() as folder:
            text = repeated(options.text, options.repeat, Path(folder))
            result["repeated"] = compare(text, options.vocabulary, options.pairs, (False,))
    else:
        result |= compare(options.text, options.vocabulary, options.pairs, (False, True))
    result["versions"] = common.versions("h5py", "numpy", "tokenizers")
    common.write("prepare_bert", result)


if __name__ == "__main__":
    main()
