"""BERT's vocabulary: tokens and ids, and text to ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_core import DataError
from recipe_core.files.documents import DocumentError, read_text
from recipe_index import bert

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class Vocabulary:
    """The pieces of a vocab.txt with their ids."""

    path: Path
    lowercase: bool
    ids: dict[str, int]

    @classmethod
    def read(cls, path: Path, lowercase: bool) -> Vocabulary:
        """Read a vocab.txt.

        Raises:
            DataError: the file cannot be read, is no vocabulary, or lacks a special token.
        """
        try:
            pieces = read_text(path).splitlines()
        except OSError as error:
            raise DataError(f"vocabulary: {path} cannot be read ({error.strerror}); name BERT's vocab.txt") from error
        except DocumentError as error:
            raise DataError(f"vocabulary: {path} is no text in UTF-8 ({error}); name BERT's vocab.txt") from error
        if path.suffix == ".json":
            raise DataError(f"vocabulary: {path} is no vocab.txt; name the file with one piece per line")
        if missing := [token for token in SPECIAL[1:] if token not in pieces]:
            raise DataError(
                f"vocabulary: {path} lacks {', '.join(missing)} among its {len(pieces):,} lines; expected BERT's "
                "vocab.txt, one piece per line, with [UNK], [CLS], [SEP] and [MASK]"
            )
        return cls(path, lowercase, dict(_hugging_face(str(path), lowercase).get_vocab()))

    @property
    def size(self) -> int:
        """Number of ids: the largest one plus 1."""
        return max(self.ids.values()) + 1

    @property
    def dtype(self) -> type[np.uint16] | type[np.int32]:
        """The smallest dtype that holds every id."""
        return np.uint16 if self.size <= 1 << 16 else np.int32

    @property
    def pad(self) -> int:
        """The id of padding; 0 if the vocabulary has none, as in the published scripts."""
        return self.ids.get("[PAD]", 0)

    def kinds(self) -> NDArray[np.uint8]:
        """Kind of each id: ``bert.SPECIAL``, ``bert.CONTINUATION``, or 0. [UNK] counts as a word."""
        kinds = np.zeros(self.size, dtype=np.uint8)
        for piece, number in self.ids.items():
            if piece in SPECIAL and piece != "[UNK]":
                kinds[number] = bert.SPECIAL
            elif piece.startswith("##"):
                kinds[number] = bert.CONTINUATION
        return kinds

    def wordpiece(self) -> bert.WordPiece:
        """The tokenizer: a compiled one for ASCII, Hugging Face's for other text."""
        tokenizer = _hugging_face(str(self.path), self.lowercase)

        def encode(texts: list[str]) -> list[list[int]]:
            return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]

        special = [token for token in SPECIAL if token in self.ids]
        numbers = np.fromiter(self.ids.values(), np.int32, len(self.ids))
        return bert.WordPiece(list(self.ids), numbers, self.lowercase, self.ids["[UNK]"], special, encode)


@lru_cache(maxsize=2)
def _hugging_face(path: str, lowercase: bool) -> Any:
    from tokenizers import BertWordPieceTokenizer

    return BertWordPieceTokenizer(path, lowercase=lowercase)
