"""``recipe prepare bert_hdf5``: text to tokens, to pairs of segments, to HDF5 shards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data import shards
from recipe_bert_dp.data.shards import Arrays
from recipe_bert_dp.data.vocabulary import Vocabulary
from recipe_bert_dp.prepare.pairs import Split, deal, pairs_file, read_pairs, splits
from recipe_bert_dp.prepare.store import opened
from recipe_bert_dp.prepare.tokens import write_store
from recipe_bert_dp.prepare.workers import fitting
from recipe_bert_dp.settings import PrepareHdf5
from recipe_core.data.filters import FilterChain, require_kept
from recipe_core.data.prepare import Output, ProgressBar, hashed, input_facts, ordered_map, sha256, writing
from recipe_core.data.text import find as find_inputs
from recipe_core.files import require_space, sync
from recipe_index import bert

KIND = "bert_hdf5"
WORK = "work"
"""Folder of intermediate files."""
_NOT_IN_FILES = ("output", "overwrite", "workers")
"""Settings without effect on the bytes of the files."""


def prepare(settings: PrepareHdf5) -> dict[str, Any]:
    """Write shards into the folder ``settings.output``; returns its manifest.

    After an interruption, the next call with the same settings continues, with the same bytes as a result.

    Raises:
        ConfigError: the output exists.
        DataError: an input or the vocabulary is missing, damaged or invalid.
        DiskError: no space is left.
    """
    vocabulary = Vocabulary.read(Path(settings.vocabulary).expanduser(), settings.lowercase)
    inputs = [source.path for source in find_inputs(settings)]
    facts, filters = input_facts(inputs), FilterChain.of(settings)
    key = {
        "kind": KIND, **plain(settings), "vocabulary": sha256(vocabulary.path), "inputs": facts, **filters.identity,
    }  # fmt: skip
    final = Path(settings.output).expanduser()
    with Output(final, key, reads=[*inputs, vocabulary.path], overwrite=settings.overwrite) as output:
        hashes = hashed(facts)
        work = output.folder / WORK
        workers = fitting(settings.workers, sum(fact["bytes"] for fact in facts))
        entry = write_store(settings, vocabulary, output, work, workers, filters)
        return write_set(settings, vocabulary, output, entry["counts"], hashes, filters.entries(entry["filters"]))


def plain(settings: PrepareHdf5) -> dict[str, Any]:
    """The settings that affect the bytes of the files."""
    return {name: value for name, value in asdict(settings).items() if name not in _NOT_IN_FILES}


def write_set(
    settings: PrepareHdf5,
    vocabulary: Vocabulary,
    output: Output,
    counts: Mapping[str, int],
    inputs: Callable[[], list[dict[str, Any]]],
    filters: Mapping[str, Any],
) -> dict[str, Any]:
    """Make the shards from the tokens of all documents, which are in the folder :data:`WORK`, and finish the output.

    ``inputs`` returns the manifest's entries of the inputs; ``filters`` is its entry of the filters, if there are any.

    Raises:
        DataError: there are too few documents.
        DiskError: no space is left.
    """
    require_kept(filters, settings.inputs)
    work = output.folder / WORK
    parts = splits(counts["documents"], settings)
    dealt = [(split, _deal(split, settings, vocabulary, output, work)) for split in parts]
    files = _write_shards(settings, vocabulary, output, dealt)
    manifest = {
        "kind": KIND,
        "settings": {**plain(settings), "vocabulary": Path(settings.vocabulary).name},
        "vocabulary": {"file": "vocab.txt", "size": vocabulary.size, "sha256": sha256(vocabulary.path)},
        "inputs": inputs(),
        "counts": {**counts, **{split.name: pair_counts for split, pair_counts in dealt}},
        **filters,
        "files": files,
    }
    with output.writing():
        shutil.copyfile(vocabulary.path, output.folder / "vocab.txt")
        shutil.rmtree(work, ignore_errors=True)
    return output.finish(manifest)


def _deal(split: Split, settings: PrepareHdf5, vocabulary: Vocabulary, output: Output, work: Path) -> dict[str, Any]:
    # Counts of the pairs, which an earlier run may have written.
    for entry in output.done:
        if entry["stage"] == "pairs" and entry["split"] == split.name:
            return dict(entry["counts"])
    with output.writing():
        with opened(work, vocabulary.dtype) as store:
            counts = deal(split, store, settings, work)
        for number in range(counts["shards"]):
            sync(pairs_file(work, split, number))
        output.note({"stage": "pairs", "split": split.name, "counts": counts})
    return counts


def _write_shards(
    settings: PrepareHdf5, vocabulary: Vocabulary, output: Output, dealt: list[tuple[Split, dict[str, Any]]]
) -> dict[str, Any]:
    # Write the shards that an earlier run has not; returns the facts of all, by path.
    done = {entry["name"]: entry["facts"] for entry in output.done if entry["stage"] == "shard"}
    tasks = []
    for split, counts in dealt:
        with output.writing():
            (output.folder / split.name).mkdir(exist_ok=True)
        tasks += [
            ShardTask(split, number) for number in range(counts["shards"]) if ShardTask(split, number).name not in done
        ]
    row = sum(np.dtype(kind).itemsize * _width(name, settings) for name, kind in shards.PLAIN.items())
    sizes = [
        pairs_file(output.folder / WORK, task.split, task.number).stat().st_size // bert.PAIR.itemsize for task in tasks
    ]
    if not settings.gzip:
        require_space(output.shown, row * sum(sizes), "the shards")
    write = WriteShard(settings, vocabulary, output.folder)
    workers = fitting(settings.workers, row * sum(sizes) // 8, len(tasks))
    with ProgressBar("shards", row * sum(sizes)) as progress:
        written = 0
        for task, size, facts in zip(tasks, sizes, ordered_map(write, tasks, workers, _describe), strict=True):
            with output.writing():
                output.note({"stage": "shard", "name": task.name, "facts": facts})
            done[task.name] = facts
            written += row * size
            progress.update(written)
    return dict(sorted(done.items()))


def _width(name: str, settings: PrepareHdf5) -> int:
    if name.startswith("masked"):
        return settings.max_predictions
    return 1 if name == "next_sentence_labels" else settings.sequence


@dataclass(frozen=True)
class ShardTask:
    """A shard to write, the unit of work of a process."""

    split: Split
    number: int

    @property
    def name(self) -> str:
        """Path in the output folder."""
        return self.split.shard(self.number) + ".hdf5"


def _describe(task: ShardTask) -> str:
    return f"the shard {task.name}"


@dataclass(frozen=True)
class WriteShard:
    """Third stage, in a worker process: mask the pairs of a shard and write them."""

    settings: PrepareHdf5
    vocabulary: Vocabulary
    folder: Path

    def __call__(self, task: ShardTask) -> dict[str, Any]:
        """Write the shard; returns its facts."""
        path = self.folder / task.name
        pairs = read_pairs(pairs_file(self.folder / WORK, task.split, task.number))
        counts = {"samples": int(pairs.size), "tokens": 0, "predictions": 0}
        with opened(self.folder / WORK, self.vocabulary.dtype) as store:
            tokens = store.take(pairs)
        blocks = self._blocks(pairs, tokens, counts)
        with writing(Path(self.settings.output)):
            shards.write(path, pairs.size, blocks, shards.PLAIN, gzip=self.settings.gzip)
        return {"bytes": path.stat().st_size, "sha256": sha256(path), **counts}

    def _blocks(self, pairs: NDArray[np.void], tokens: NDArray[Any], counts: dict[str, int]) -> Iterator[Arrays]:
        settings, vocabulary = self.settings, self.vocabulary
        ids = vocabulary.ids
        kinds = vocabulary.kinds()
        for start in range(0, max(1, pairs.size), shards.ROWS_AT_ONCE):
            rows = bert.fill_rows(
                tokens, pairs[start : start + shards.ROWS_AT_ONCE], kinds, ids["[CLS]"], ids["[SEP]"], ids["[MASK]"],
                vocabulary.pad, settings.sequence, settings.max_predictions, settings.masked_lm_prob,
                settings.whole_word_mask,
            )  # fmt: skip
            block: Arrays = dict(zip(shards.PLAIN, rows, strict=True))
            counts["tokens"] += int(block["input_mask"].sum(dtype=np.int64))
            counts["predictions"] += int(np.count_nonzero(block["masked_lm_positions"]))
            yield block
