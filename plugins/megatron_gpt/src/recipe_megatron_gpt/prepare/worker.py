"""The worker processes of ``recipe prepare gpt_indexed``, which import no more than they need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from recipe_core.data.filters import FilterChain, FilterCounts
from recipe_core.data.prepare import working_on
from recipe_core.data.text import Record, clean, sentences
from recipe_megatron_gpt.tokenizer.encoders import Encode, EncodeMethod, encoder


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk of documents as token ids."""

    tokens: bytes
    """Concatenated ids, as bytes of the .bin file."""
    sizes: NDArray[np.int32]
    """Tokens of each sequence."""
    sequences: NDArray[np.int32]
    """Sequences of each document."""
    read: int
    """Documents read."""
    without_text: int
    """Wiki pages without prose, which are left out."""
    filters: list[FilterCounts]
    """The counts of each filter."""
    consumed: int
    """Bytes of the inputs read up to the end of the chunk."""


@dataclass(frozen=True)
class ChunkEncoder:
    """The function of a worker process, from documents to token ids."""

    method: EncodeMethod
    tokenizer: str
    """Content of a tokenizer.json."""
    typecode: str
    """NumPy's type code of the ids in the file."""
    add_special_tokens: bool
    eod: bytes
    """The id that ends a document, as bytes of the file; empty for none."""
    split_sentences: bool
    filters: FilterChain

    def __call__(self, chunk: list[Record]) -> EncodedChunk:
        """Clean, filter, split and encode the documents, as Megatron-LM's preprocess_data does.

        As there, a sentence without tokens is no sequence, and a document without tokens is kept, without sequences and
        end.
        """
        encode = _encoder(self.method, self.tokenizer, self.typecode, self.add_special_tokens)
        width = np.dtype(self.typecode).itemsize
        tokens: list[bytes] = []
        sizes: list[int] = []
        sequences: list[int] = []
        counts, without_text = self.filters.new_counts(), 0
        for record in chunk:
            working_on(record)
            text = clean(record)
            without_text += text is None
            text = None if text is None else self.filters.apply(record, text, counts)
            if text is None:
                continue
            encoded = [ids for ids in encode(list(sentences(text)) if self.split_sentences else [text]) if ids]
            if encoded:
                encoded[-1] += self.eod
            tokens += encoded
            sizes += [len(ids) // width for ids in encoded]
            sequences.append(len(encoded))
        return EncodedChunk(
            tokens=b"".join(tokens),
            sizes=np.array(sizes, dtype=np.int32),
            sequences=np.array(sequences, dtype=np.int32),
            read=len(chunk),
            without_text=without_text,
            filters=counts,
            consumed=chunk[-1].consumed,
        )


@lru_cache(maxsize=1)
def _encoder(method: EncodeMethod, tokenizer: str, typecode: str, add_special_tokens: bool) -> Encode:
    # cached per process
    return encoder(method, tokenizer, typecode, add_special_tokens)
