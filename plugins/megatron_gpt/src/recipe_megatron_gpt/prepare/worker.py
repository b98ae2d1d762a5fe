"""The worker processes of ``recipe prepare gpt_indexed``, which import no more than they need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from recipe_core.data.prepare import working_on
from recipe_core.data.text import Record, clean, sentences
from recipe_megatron_gpt.tokenizer.encoders import Encode, Way, encoder


@dataclass(frozen=True)
class Encoded:
    """Some documents as token ids."""

    tokens: bytes
    """Their ids one behind the other, as they stand in the .bin file."""
    sizes: NDArray[np.int32]
    """Tokens of each sequence."""
    sequences: NDArray[np.int32]
    """Sequences of each document."""
    read: int
    """Documents that were read for it."""
    without_text: int
    """Wiki pages without any prose; they are left out."""
    consumed: int
    """Bytes of the inputs that were read up to here."""


@dataclass(frozen=True)
class Tokenise:
    """The function of a worker process: documents to token ids."""

    way: Way
    tokenizer: str
    """Content of a tokenizer.json."""
    typecode: str
    """Of the ids in the file, as NumPy names it."""
    add_special_tokens: bool
    eod: bytes
    """The id that ends a document, as it stands in the file; or nothing."""
    split_sentences: bool

    def __call__(self, chunk: list[Record]) -> Encoded:
        """Clean, split and encode the documents, as Megatron-LM's preprocess_data does.

        There, too, a sentence without any token is no sequence, and a document without any keeps its place, without a
        sequence and without an end.
        """
        encode = _encoder(self.way, self.tokenizer, self.typecode, self.add_special_tokens)
        width = np.dtype(self.typecode).itemsize
        tokens: list[bytes] = []
        sizes: list[int] = []
        sequences: list[int] = []
        for record in chunk:
            working_on(record)
            text = clean(record)
            if text is None:
                continue
            encoded = [ids for ids in encode(list(sentences(text)) if self.split_sentences else [text]) if ids]
            if encoded:
                encoded[-1] += self.eod
            tokens += encoded
            sizes += [len(ids) // width for ids in encoded]
            sequences.append(len(encoded))
        return Encoded(
            tokens=b"".join(tokens),
            sizes=np.array(sizes, dtype=np.int32),
            sequences=np.array(sequences, dtype=np.int32),
            read=len(chunk),
            without_text=len(chunk) - len(sequences),
            consumed=chunk[-1].consumed,
        )


@lru_cache(maxsize=1)
def _encoder(way: Way, tokenizer: str, typecode: str, add_special_tokens: bool) -> Encode:
    """Made once per process."""
    return encoder(way, tokenizer, typecode, add_special_tokens)
