"""First stage: documents to sentences to token ids, in a store on the disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from recipe_core.data.prepare import Output, Progress, ordered_map, working_on
from recipe_core.data.text import Counts, Record, clean, records, sentences, total_bytes
from recipe_index import bert

BATCH = 1_000_000
"""Characters of documents that a worker gets at a time."""
EVERY = 64_000_000
"""Characters after which the journal says how far the work is: what an interrupted run does again at most."""


@dataclass(frozen=True)
class Tokenised:
    """Some documents as token ids; documents and sentences without any are left out."""

    ids: NDArray[Any]
    sentences: NDArray[np.int32]
    """Tokens of each sentence."""
    documents: NDArray[np.int32]
    """Sentences of each document."""
    unknown: int
    """Number of ids that are [UNK]."""


@dataclass(frozen=True)
class Tokenise:
    """The function of a worker process: documents to token ids."""

    vocabulary: Vocabulary

    def __call__(self, batch: list[Record]) -> Tokenised:
        """Clean, split and encode the documents."""
        wordpiece = _wordpiece(self.vocabulary.path, self.vocabulary.lowercase)
        ids, lengths, documents = [], [], []
        for record in batch:
            working_on(record)
            tokens, each = wordpiece.encode(sentences(text) if (text := clean(record)) else [])
            if tokens.size:
                ids.append(tokens)
                lengths.append(each[each > 0])
                documents.append(lengths[-1].size)
        whole = _joined(ids)
        unknown = int(np.count_nonzero(whole == self.vocabulary.ids["[UNK]"]))
        return Tokenised(
            whole.astype(self.vocabulary.dtype), _joined(lengths), np.array(documents, dtype=np.int32), unknown
        )


def _joined(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate([np.empty(0, dtype=np.int32), *parts])


@lru_cache(maxsize=1)
def _wordpiece(path: Path, lowercase: bool) -> bert.WordPiece:
    """Once per process, for it remembers the words that it has met."""
    return Vocabulary.read(path, lowercase).wordpiece()


def write_store(
    settings: PrepareHdf5, vocabulary: Vocabulary, output: Output, folder: Path, workers: int
) -> dict[str, int]:
    """Make the store in ``folder``, from where an earlier run was interrupted on; return what was counted.

    Raises:
        DataError: an input is missing, damaged or empty, or a worker died.
        DiskError: there is no space left.
    """
    earlier = [entry for entry in output.done if entry["stage"] == "tokens"]
    last: dict[str, Any] = earlier[-1] if earlier else {"records": 0, "unknown": 0, "at": None}
    if last.get("complete"):
        return dict(last["counts"])
    counts = Counts()
    done, unknown, characters = last["records"], last["unknown"], 0
    source = islice(records(settings, counts), done, None)
    with ExitStack() as stack:
        with output.writing():
            folder.mkdir(exist_ok=True)
            store = stack.enter_context(StoreWriter(folder, vocabulary.dtype, last["at"]))
        progress = stack.enter_context(Progress("tokens", total_bytes(settings)))
        for batch, result in _results(vocabulary, source, workers):
            with output.writing():
                store.add(result.ids, result.sentences, result.documents)
                done, unknown = done + len(batch), unknown + result.unknown
                characters += sum(len(record.text) for record in batch)
                if characters >= EVERY:
                    output.note({"stage": "tokens", "records": done, "unknown": unknown, "at": store.state()})
                    characters = 0
            progress.update(batch[-1].consumed)
        with output.writing():
            found = {
                **counts.as_dict(), "documents_read": counts.documents, **store.state(), "unknown_tokens": unknown,
            }  # fmt: skip
            output.note({"stage": "tokens", "complete": True, "counts": found})
    return found


def _results(
    vocabulary: Vocabulary, source: Iterable[Record], workers: int
) -> Iterator[tuple[list[Record], Tokenised]]:
    """Batches of documents with what became of them, in order."""
    under_way: list[list[Record]] = []

    def batches() -> Iterator[list[Record]]:
        batch: list[Record] = []
        size = 0
        for record in source:
            batch.append(record)
            size += len(record.text)
            if size >= BATCH:
                under_way.append(batch)
                yield batch
                batch, size = [], 0
        if batch:
            under_way.append(batch)
            yield batch

    for result in ordered_map(Tokenise(vocabulary), batches(), workers, _describe):
        yield under_way.pop(0), result


def _describe(batch: list[Record]) -> str:
    return str(batch[0]) if len(batch) == 1 else f"the documents from {batch[0]} to {batch[-1]}"
