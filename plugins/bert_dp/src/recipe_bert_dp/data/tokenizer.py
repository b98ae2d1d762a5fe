"""The vocabulary of a data set as files of Hugging Face's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from recipe_bert_dp.data import corpus, shards
from recipe_bert_dp.settings import BertHdf5
from recipe_core import DataError
from recipe_core.data.prepare import read_manifest
from recipe_core.files import home


def files(config: BertHdf5) -> dict[str, str]:
    """The ``vocab.txt`` of the shards and a ``tokenizer_config.json``; empty if the shards have none.

    Raises:
        RecipeError: the shards or their manifest cannot be read.
    """
    path = shards.vocabulary_of(shards.find(corpus.with_files(config, home()).files))
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    lowercase = _lowercase(path.parent)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase, "strip_accents": None}
    return {"vocab.txt": text, "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}


def _lowercase(folder: Path) -> bool:
    settings = read_manifest(folder).get("settings", {})
    return bool(settings.get("lowercase", True))
