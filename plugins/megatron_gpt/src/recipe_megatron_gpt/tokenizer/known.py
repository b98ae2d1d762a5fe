"""Facts about a tokenizer for ``recipe prepare gpt_indexed``, with any library."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from recipe_core import DataError
from recipe_core.checkpoint.inference.tokenizer import end_of_document, files_of, read_vocabulary, size
from recipe_megatron_gpt.data.indexed import best_dtype
from recipe_megatron_gpt.tokenizer.cache import key_of, recall, remember
from recipe_megatron_gpt.tokenizer.encoders import content_of, load_tokenizer

_NARROW = 1 << 16
"""Number of ids that uint16 represents."""


@dataclass(frozen=True)
class KnownTokenizer:
    """A tokenizer, and its sizes."""

    content: str
    """Content of its tokenizer.json."""
    size: int
    """Upper bound of the ids, excluded."""
    entries: int
    """Tokens of the vocabulary; fewer than :attr:`size` if ids have gaps."""
    end: int | None
    """The id that ends a document; None for none."""

    @property
    def dtype(self) -> np.dtype[np.uint16] | np.dtype[np.int32]:
        """The token type that Megatron chooses by the number of tokens; int32 if an id does not fit into it."""
        return best_dtype(self.entries if self.size <= _NARROW else self.size)


def known_tokenizer(content: str, eod: str | None, source: str = "the vocabulary") -> KnownTokenizer:
    """The tokenizer of a tokenizer.json with this content, documents ending with the token ``eod``.

    ``source`` names its origin in messages.

    Raises:
        ConfigError: it has no such token.
    """
    tokenizer = load_tokenizer(content)
    end = None if eod is None else end_of_document(tokenizer, eod, source)
    return KnownTokenizer(content, size(tokenizer), tokenizer.get_vocab_size(), end)


def read_known_tokenizer(path: Path, eod: str | None) -> KnownTokenizer:
    """The tokenizer in ``path``, in any format of ``vocabulary.read_vocabulary``.

    Raises:
        DataError: a file is missing, damaged, or not a tokenizer.
        ConfigError: it has no token ``eod``.
    """
    files = [file for file in files_of(path) if file.is_file()]
    try:
        key = key_of("known", repr(eod), *(part for file in files for part in (file.name, file.read_bytes())))
    except OSError as error:
        raise DataError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
    if entry := recall(key):
        return KnownTokenizer(**entry)
    facts = known_tokenizer(content_of(read_vocabulary(path)), eod, str(path))
    remember(key, asdict(facts))
    return facts
