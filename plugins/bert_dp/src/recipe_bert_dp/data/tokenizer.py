"""The vocabulary of a data set as Hugging Face's tokenizer takes it."""

from __future__ import annotations

import json
from pathlib import Path

from recipe_bert_dp.data import corpus, shards
from recipe_bert_dp.settings import BertHdf5
from recipe_core import DataError
from recipe_core.data.prepare import read_manifest
from recipe_core.files import home


def files(config: BertHdf5) -> dict[str, str]:
    """``vocab.txt``, as it lies beside the shards, and ``tokenizer_config.json``; nothing where there is none.

    Raises:
        RecipeError: the shards, or the manifest beside them, cannot be read.
    """
    found = shards.vocabulary_beside(shards.find(corpus.filled(config, home()).files))
    if found is None:
        return {}
    try:
        text = found.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{found}: cannot be read ({error})") from error
    lowercase = _lowercase(found.parent)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase, "strip_accents": None}
    return {"vocab.txt": text, "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}


def _lowercase(folder: Path) -> bool:
    """True if the shards were made with lower-case letters, which is the default."""
    settings = read_manifest(folder).get("settings", {})
    return bool(settings.get("lowercase", True))
