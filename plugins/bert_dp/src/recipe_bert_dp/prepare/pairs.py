"""Second stage: pairs of segments, assigned to shards. A pair is a record of 32 bytes with the places of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.prepare.store import Store
from recipe_bert_dp.settings import PrepareHdf5
from recipe_core import DataError
from recipe_index import bert

DOCUMENTS_AT_ONCE = 4096
PAIRS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Split:
    """The training or the test part of the documents."""

    name: str
    """``training`` or ``test``, part of the names of the shards, by which the published scripts find them."""
    documents: NDArray[np.int64]
    rounds: int
    """Number of passes over each document."""

    def shard(self, number: int) -> str:
        """Path of a shard in the output folder, without its suffix."""
        return f"{self.name}/{self.name}_{number:05}"


def splits(documents: int, settings: PrepareHdf5) -> list[Split]:
    """Assign each document to training or test at random.

    Raises:
        DataError: too few documents to take the second segment of a pair from another one.
    """
    tests = 0 if settings.test_share == 0 else max(2, round(documents * settings.test_share))
    if documents < tests + 2:
        raise DataError(
            f"inputs: {documents} document(s) with text, expected at least {tests + 2}: half of the samples take their "
            "second segment from another document, in the training and in the test part. Add documents; where blank "
            "lines part them, set documents=blank_line; test_share=0 makes no test part"
        )
    order = np.random.Generator(np.random.Philox(settings.seed)).permutation(documents)
    training = Split("training", np.sort(order[tests:]), settings.dupe_factor)
    return [training, Split("test", np.sort(order[:tests]), 1)] if tests else [training]


def deal(split: Split, store: Store, settings: PrepareHdf5, folder: Path) -> dict[str, Any]:
    """Create the pairs of ``split``, and write them into ``folder``, one file per shard.

    Returns:
        Number of ``shards``, of ``pairs``, and of pairs by property.
    """
    all_pairs = folder / f"{split.name}.pairs"
    counts = {"pairs": 0, "random_next": 0, "single_sentence": 0}
    with all_pairs.open("wb") as file:
        for number in range(split.rounds):
            for first in range(0, split.documents.size, DOCUMENTS_AT_ONCE):
                last = min(first + DOCUMENTS_AT_ONCE, split.documents.size)
                pairs = bert.make_pairs(
                    store.sentences, store.documents, split.documents, first, last, settings.sequence,
                    settings.short_seq_prob, settings.seed, number,
                )  # fmt: skip
                file.write(pairs.tobytes())
                counts["pairs"] += pairs.size
                counts["random_next"] += int(pairs["random_next"].sum(dtype=np.int64))
                counts["single_sentence"] += int(pairs["single"].sum(dtype=np.int64))
                store.forget()
    shards = max(1, round(counts["pairs"] / settings.samples_per_shard))
    _deal(all_pairs, [pairs_file(folder, split, number) for number in range(shards)])
    all_pairs.unlink()
    return {"shards": shards, **counts}


def pairs_file(folder: Path, split: Split, shard: int) -> Path:
    """File of the pairs of a shard."""
    return folder / f"{split.name}_{shard:05}.pairs"


def _deal(all_pairs: Path, paths: list[Path]) -> None:
    # By the upper bits of their keys, which are random.
    for path in paths:
        path.write_bytes(b"")
    shards = np.uint64(len(paths))
    with all_pairs.open("rb") as file:
        while (pairs := np.fromfile(file, bert.PAIR, PAIRS_AT_ONCE)).size:
            shard = ((pairs["key"] >> np.uint64(32)) * shards >> np.uint64(32)).astype(np.int64)
            pairs = pairs[np.argsort(shard, kind="stable")]
            ends = np.cumsum(np.bincount(shard, minlength=len(paths)))
            for path, part in zip(paths, np.split(pairs, ends[:-1]), strict=True):
                if part.size:
                    with path.open("ab") as target:
                        target.write(part.tobytes())


def read_pairs(path: Path) -> NDArray[np.void]:
    """The pairs of a shard in the order of its samples, which is that of their keys."""
    pairs = np.fromfile(path, bert.PAIR)
    return pairs[np.argsort(pairs["key"], kind="stable")]
