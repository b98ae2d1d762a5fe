"""Small inputs for ``recipe prepare bert_hdf5`` and ``bert_packed``, to check that they are deterministic."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from recipe_bert_dp.settings import PrepareHdf5

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = ("the", "of", "a", "cat", "dog", "saw", "house", "number")


def text(folder: Path) -> dict[str, Any]:
    """Write documents and a vocabulary into ``folder``; return the settings that prepare them."""
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    vocabulary = [*_SPECIAL, *_WORDS, *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    documents = [" ".join(_sentence(number, place) for place in range(3 + number % 5)) for number in range(60)]
    (folder / "documents.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return {
        "inputs": [str(folder / "documents.txt")], "documents": "blank_line", "vocabulary": str(folder / "vocab.txt"),
        "sequence": 64, "max_predictions": 10, "dupe_factor": 1, "test_share": 0.1, "workers": 1,
    }  # fmt: skip


def shards(folder: Path) -> dict[str, Any]:
    """Prepare plain shards in ``folder``; return the settings that pack them."""
    from recipe_bert_dp.prepare.hdf5 import prepare

    output = folder / "plain"
    settings = text(folder)
    prepare(PrepareHdf5(**{**settings, "inputs": tuple(settings["inputs"]), "output": str(output)}))
    return {"inputs": [str(output)], "workers": 1}


def _sentence(document: int, place: int) -> str:
    return f"The {_WORDS[(document + place) % 5 + 3]} saw house number {document * place}."
