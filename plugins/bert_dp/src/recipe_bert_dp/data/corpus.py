"""The embedded corpus: the English text that ships with CPython, prepared as shards once per machine.

A WordPiece vocabulary is trained on it; then it is prepared like any other text.
"""

from __future__ import annotations

import json
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from recipe_bert_dp.settings import BertHdf5, PrepareHdf5, PreparePacked
from recipe_core import DataError, load_or_build
from recipe_core.data.prepare import read_manifest
from recipe_core.data.text import library

VERSION = 1
"""Increment it when a change here changes the shards, so that old caches are not used."""
TEXT, VOCABULARY = "text.jsonl", "vocab.txt"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEST_SHARE = 0.03
DUPE_FACTOR = 10
"""Passes over each document: a small corpus is read many times, and needs other masks each time."""


def with_files(config: BertHdf5, cache: Path) -> BertHdf5:
    """``config`` with the files of the embedded corpus if it names none; the corpus is built in ``cache`` if missing.

    With several processes, one builds it (in seconds), the others wait.

    Raises:
        DataError: this Python ships too little text.
        DiskError: ``cache`` cannot be written.
    """
    if config.files:
        return config
    return replace(config, files=(str(prepare(cache, config)),))


def prepare(cache: Path, config: BertHdf5) -> Path:
    """Folder of the corpus as shards for ``config``, built in ``cache`` if missing."""
    text = load_or_build(cache / f"bert-text-{_fingerprint(config)}", _text, lambda part: _write_text(part, config))
    key = f"{_fingerprint(config)}-{config.sequence}-{config.max_predictions}"
    plain = load_or_build(cache / f"bert-shards-{key}", _shards, lambda part: _write_shards(part, text, config))
    if config.packed is False:
        return plain
    return load_or_build(cache / f"bert-packed-{key}", _shards, lambda part: _write_packed(part, plain))


def _fingerprint(config: BertHdf5) -> str:
    made_from = (
        platform.python_implementation(), platform.python_version(), config.vocabulary, VERSION, library.VERSION
    )  # fmt: skip
    return blake2b(" ".join(map(str, made_from)).encode(), digest_size=6).hexdigest()


def _text(folder: Path) -> Path:
    for name in (TEXT, VOCABULARY):
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: not found; remove {folder} to have it made again")
    return folder


def _shards(folder: Path) -> Path:
    sizes = {folder / name: facts["bytes"] for name, facts in read_manifest(folder).get("files", {}).items()}
    intact = (path.is_file() and path.stat().st_size == size for path, size in sizes.items())
    if not sizes or not (folder / VOCABULARY).is_file() or not all(intact):
        raise DataError(f"{folder}: is not whole; remove it to have it made again")
    return folder


def _write_text(folder: Path, config: BertHdf5) -> None:
    print(f"the English text of Python's library is prepared for BERT, once: {folder.parent}", file=sys.stderr)
    texts = library.documents(Path(sysconfig.get_paths()["stdlib"]))
    folder.mkdir()
    (folder / VOCABULARY).write_text("\n".join(train_vocabulary(texts, config.vocabulary)) + "\n", encoding="utf-8")
    with (folder / TEXT).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def _write_shards(folder: Path, text: Path, config: BertHdf5) -> None:
    from recipe_bert_dp.prepare import hdf5 as preparing  # imports numpy, h5py and the index

    preparing.prepare(
        PrepareHdf5(
            inputs=(str(text / TEXT),), vocabulary=str(text / VOCABULARY), output=str(folder), workers=1,
            sequence=config.sequence, max_predictions=config.max_predictions, test_share=TEST_SHARE,
            dupe_factor=DUPE_FACTOR, samples_per_shard=8192,
            masked_lm_prob=min(0.15, config.max_predictions / config.sequence),
        )
    )  # fmt: skip


def _write_packed(folder: Path, plain: Path) -> None:
    from recipe_bert_dp.prepare import pack

    pack.prepare(PreparePacked(inputs=(str(plain),), output=str(folder), workers=1, samples_per_shard=8192))


def train_vocabulary(texts: Iterable[str], entries: int) -> list[str]:
    """Train an uncased WordPiece vocabulary of at most ``entries`` pieces, in the order of their ids."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(lowercase=True)
    texts = list(texts)
    # The trainer numbers letters inside words in the order of a hash table, which differs between processes; as special
    # tokens, they have fixed numbers.
    inside = sorted({letter for word in _words(tokenizer, texts) for letter in word[1:]})
    named = [*SPECIAL, *(f"##{letter}" for letter in inside)]
    tokenizer.train_from_iterator(texts, vocab_size=entries, min_frequency=2, special_tokens=named, show_progress=False)
    pieces: dict[str, int] = tokenizer.get_vocab()
    return sorted(pieces, key=pieces.__getitem__)


def _words(tokenizer: Any, texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            yield word
