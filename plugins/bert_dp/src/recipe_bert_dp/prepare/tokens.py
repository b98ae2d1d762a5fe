"""First stage: documents to sentences to token ids, in a store on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data.vocabulary import Vocabulary
from recipe_bert_dp.prepare.store import StoreWriter
from recipe_bert_dp.settings import PrepareHdf5
from recipe_core.data.filters import FilterChain, FilterCounts, add_counts, dropped_by
from recipe_core.data.prepare import Output, ProgressBar, ordered_map, working_on
from recipe_core.data.text import Counts, Record, Source, clean, records, sentences, total_bytes
from recipe_index import bert

BATCH = 1_000_000
"""Characters of documents per task of a worker process."""
EVERY = 64_000_000
"""Characters between entries of the journal; an interrupted run repeats at most this many."""


@dataclass(frozen=True)
class EncodedDocuments:
    """Token ids of several documents, without empty documents and sentences."""

    ids: NDArray[Any]
    sentences: NDArray[np.int32]
    """Tokens per sentence."""
    documents: NDArray[np.int32]
    """Sentences per document."""
    unknown: int
    """Number of ids that are [UNK]."""
    filters: list[FilterCounts]
    """The counts of each filter."""


@dataclass(frozen=True)
class EncodeDocuments:
    """Documents to token ids, in a worker process."""

    vocabulary: Vocabulary
    filters: FilterChain

    def __call__(self, batch: list[Record]) -> EncodedDocuments:
        """Clean, filter, split and encode the documents."""
        filtered = self.filters.new_counts()
        wordpiece = _wordpiece(self.vocabulary.path, self.vocabulary.lowercase)
        ids, lengths, documents = [], [], []
        for record in batch:
            working_on(record)
            text = clean(record)
            text = self.filters.apply(record, text, filtered) if text else None
            tokens, counts = wordpiece.encode(sentences(text) if text else [])
            if tokens.size:
                ids.append(tokens)
                lengths.append(counts[counts > 0])
                documents.append(lengths[-1].size)
        all_ids = _joined(ids)
        unknown = int(np.count_nonzero(all_ids == self.vocabulary.ids["[UNK]"]))
        return EncodedDocuments(
            all_ids.astype(self.vocabulary.dtype), _joined(lengths), np.array(documents, dtype=np.int32), unknown,
            filtered,
        )  # fmt: skip


def _joined(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate([np.empty(0, dtype=np.int32), *parts])


@lru_cache(maxsize=1)
def _wordpiece(path: Path, lowercase: bool) -> bert.WordPiece:
    # One per process, since it caches words.
    return Vocabulary.read(path, lowercase).wordpiece()


def write_store(
    settings: PrepareHdf5,
    vocabulary: Vocabulary,
    output: Output,
    folder: Path,
    workers: int,
    filters: FilterChain,
    pieces: Sequence[Source] | None = None,
) -> dict[str, Any]:
    """Write the store in ``folder``, continuing an interrupted run; returns the last entry of the journal.

    Its ``counts`` and ``filters`` are of all inputs, or of the ``pieces`` that a part reads.

    Raises:
        DataError: an input is missing, damaged or empty, or a worker died.
        DiskError: no space is left.
    """
    earlier = [entry for entry in output.done if entry["stage"] == "tokens"]
    last: dict[str, Any] = earlier[-1] if earlier else {"records": 0, "unknown": 0, "at": None, "filters": []}
    if last.get("complete"):
        return last
    counts = Counts()
    done, unknown, filtered, characters = last["records"], last["unknown"], last["filters"], 0
    source = islice(records(settings, counts, pieces), done, None)
    total = total_bytes(settings) if pieces is None else sum(piece.bytes for piece in pieces)
    with ExitStack() as stack:
        with output.writing():
            folder.mkdir(exist_ok=True)
            store = stack.enter_context(StoreWriter(folder, vocabulary.dtype, last["at"]))
        progress = stack.enter_context(ProgressBar("tokens", total))
        for batch, result in _results(EncodeDocuments(vocabulary, filters), source, workers):
            with output.writing():
                store.add(result.ids, result.sentences, result.documents)
                done, unknown = done + len(batch), unknown + result.unknown
                filtered = add_counts(filtered, result.filters)
                characters += sum(len(record.text) for record in batch)
                if characters >= EVERY:
                    counted = {"records": done, "unknown": unknown, "filters": filtered}
                    output.note({"stage": "tokens", **counted, "at": store.state()})
                    characters = 0
            progress.update(batch[-1].consumed)
        with output.writing():
            totals = {
                **counts.as_dict(), "documents_read": counts.documents, **store.state(), "unknown_tokens": unknown,
                **({"dropped": dropped_by(filtered)} if filters else {}),
            }  # fmt: skip
            entry = {
                "stage": "tokens", "complete": True, "counts": totals, "filters": filtered,
                "replaced_in_pieces": counts.replaced_in_pieces, "documents_in_pieces": counts.documents_in_pieces,
            }  # fmt: skip
            output.note(entry)
    return entry


def _results(
    encode: EncodeDocuments, source: Iterable[Record], workers: int
) -> Iterator[tuple[list[Record], EncodedDocuments]]:
    pending: list[list[Record]] = []

    def batches() -> Iterator[list[Record]]:
        batch: list[Record] = []
        size = 0
        for record in source:
            batch.append(record)
            size += len(record.text)
            if size >= BATCH:
                pending.append(batch)
                yield batch
                batch, size = [], 0
        if batch:
            pending.append(batch)
            yield batch

    for result in ordered_map(encode, batches(), workers, _describe):
        yield pending.pop(0), result


def _describe(batch: list[Record]) -> str:
    return str(batch[0]) if len(batch) == 1 else f"the documents from {batch[0]} to {batch[-1]}"
