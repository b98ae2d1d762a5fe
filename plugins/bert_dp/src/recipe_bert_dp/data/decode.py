"""Token ids to text, and special ids, from a vocab.txt or a tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data.shards import Arrays, vocabulary_of
from recipe_core import DataError
from recipe_core.data.tokenizer import require_tokenizer
from recipe_core.files.documents import DocumentError, read_text


@dataclass(frozen=True)
class WordPieces:
    """The pieces of a vocabulary by their ids."""

    names: dict[int, str]

    @classmethod
    def find(cls, path: Path | None, shards: Iterable[Path]) -> WordPieces | None:
        """Read ``path`` (a vocab.txt or tokenizer.json), or else a vocab.txt near ``shards``, if there is one.

        Raises:
            DataError: ``path`` cannot be read.
        """
        path = path or vocabulary_of(shards)
        return None if path is None else cls(_read(path))

    @property
    def size(self) -> int:
        """Number of ids: the largest one plus 1."""
        return max(self.names, default=-1) + 1

    def special(self) -> NDArray[np.int64]:
        """Ids of tokens that are never predicted."""
        never = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
        return np.array([number for number, piece in self.names.items() if piece in never], dtype=np.int64)

    def example(self, block: Arrays) -> str:
        """The first row of ``block`` as text, with the labels in brackets after the masked tokens."""
        ids = block["input_ids"][0][block["input_mask"][0] != 0]
        positions = block["masked_lm_positions"][0]
        labels = {int(p): int(i) for p, i in zip(positions, block["masked_lm_ids"][0], strict=True) if p}
        words: list[str] = []
        for place, number in enumerate(map(int, ids)):
            piece = self.names.get(number, f"<{number}>")
            shown = piece + (f"({self.names.get(labels[place], '?')})" if place in labels else "")
            if piece.startswith("##") and words:
                words[-1] += shown[2:]
            else:
                words.append(shown)
        return " ".join(words)


def _read(path: Path) -> dict[int, str]:
    if path.suffix == ".json":
        from tokenizers import Tokenizer

        vocabulary = Tokenizer.from_str(require_tokenizer(path)).get_vocab()
        return {number: piece for piece, number in vocabulary.items()}
    try:
        return dict(enumerate(read_text(path).splitlines()))
    except (OSError, DocumentError) as error:
        raise DataError(f"{path}: cannot be read as a vocab.txt or tokenizer.json ({error})") from error
