"""A WordPiece vocabulary trained on the training texts, for models without a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipe_core.files import home
from recipe_hf_finetune.data.splits import load
from recipe_hf_finetune.settings import TextClassification

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def files(config: TextClassification) -> dict[str, str]:
    """``vocab.txt`` and ``tokenizer_config.json``, which AutoTokenizer loads as a BertTokenizer."""
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": config.max_length}
    vocabulary = "\n".join(trained(config)) + "\n"
    return {"vocab.txt": vocabulary, "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}


def trained(config: TextClassification, cache: Path | None = None) -> list[str]:
    """Train an uncased WordPiece vocabulary; returns its pieces in the order of their ids, the same in every
    process."""
    from tokenizers import BertWordPieceTokenizer

    texts = [text for column in load(config, cache or home()).splits["train"].texts for text in column]
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    # The trainer numbers letters inside words in the order of a hash table; as special tokens, they have fixed numbers.
    inside = sorted({letter for text in texts for word in _words(tokenizer, text) for letter in word[1:]})
    named = [*SPECIAL, *(f"##{letter}" for letter in inside)]
    tokenizer.train_from_iterator(
        texts, vocab_size=config.vocabulary, min_frequency=2, special_tokens=named, show_progress=False
    )
    pieces: dict[str, int] = tokenizer.get_vocab()
    return sorted(pieces, key=pieces.__getitem__)


def _words(tokenizer: Any, text: str) -> list[str]:
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]
