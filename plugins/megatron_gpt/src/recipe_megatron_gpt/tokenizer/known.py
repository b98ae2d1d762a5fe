"""Facts that ``recipe prepare gpt_indexed`` needs about a tokenizer, whichever library encodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipe_core import DataError
from recipe_megatron_gpt.data.indexed import best_dtype
from recipe_megatron_gpt.tokenizer.cache import key_of, recall, remember
from recipe_megatron_gpt.tokenizer.encoders import content_of, load_tokenizer
from recipe_megatron_gpt.tokenizer.vocabulary import end_of_document, files_of, read_vocabulary, size

_NARROW = 1 << 16
"""Ids that uint16 has."""


@dataclass(frozen=True)
class KnownTokenizer:
    """A tokenizer, and its numbers."""

    content: str
    """Of its tokenizer.json."""
    size: int
    """Ids are below this."""
    entries: int
    """Tokens of the vocabulary; fewer than :attr:`size` where ids are left out."""
    end: int | None
    """The id that ends a document, if one is to."""

    @property
    def dtype(self) -> np.dtype[np.uint16] | np.dtype[np.int32]:
        """The token type that Megatron takes: by the number of tokens, and wide where an id would not fit it."""
        return best_dtype(self.entries if self.size <= _NARROW else self.size)


def known(content: str, eod: str | None, source: str = "the vocabulary") -> KnownTokenizer:
    """The tokenizer of a tokenizer.json with this content, documents ending with the token ``eod``.

    ``source`` says in a message where it is from.

    Raises:
        ConfigError: it has no such token.
    """
    tokenizer = load_tokenizer(content)
    end = None if eod is None else end_of_document(tokenizer, eod, source)
    return KnownTokenizer(content, size(tokenizer), tokenizer.get_vocab_size(), end)


def given(path: Path, eod: str | None) -> KnownTokenizer:
    """The tokenizer in ``path``, in any form that ``vocabulary.read_vocabulary`` takes.

    Raises:
        DataError: a file is missing, damaged, or no tokenizer.
        ConfigError: it has no token ``eod``.
    """
    files = [file for file in files_of(path) if file.is_file()]
    try:
        key = key_of("known", repr(eod), *(part for file in files for part in (file.name, file.read_bytes())))
    except OSError as error:
        raise DataError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
    if entry := recall(key):
        return KnownTokenizer(entry.data.decode(), **entry.facts)
    facts = known(content_of(read_vocabulary(path)), eod, str(path))
    remember(key, {"size": facts.size, "entries": facts.entries, "end": facts.end}, facts.content.encode())
    return facts
