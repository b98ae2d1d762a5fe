"""The embedded corpus: the English text in CPython's library, tokenised and indexed once per machine.

A byte-level BPE is trained on it. The token files and the tokenizer are written as for any other data.
"""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core import DataError, load_or_build
from recipe_core.data.prepare.manifest import NAME as MANIFEST
from recipe_core.data.prepare.manifest import file_facts, file_problems, manifest_text, read_manifest
from recipe_core.data.text import library
from recipe_core.launch.notice import notice

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VERSION = 2
"""Increase it when a change here changes the documents or their token ids: old caches are then ignored."""
END = "<|endoftext|>"
TOKENIZER = "tokenizer.json"


def prepare(cache: Path, vocabulary: int) -> Path:
    """Build the corpus in ``cache``, unless it is there, and return its prefix; its tokenizer.json is in the same
    folder.

    Several processes may call this at once: one builds (a few seconds), the others wait.

    Raises:
        DataError: this Python has too little text.
        DiskError: ``cache`` cannot be written.
    """
    folder = cache / f"python-text-{_fingerprint(vocabulary)}"
    return load_or_build(folder, _checked, lambda part: _write(part, vocabulary))


def _checked(folder: Path) -> Path:
    # Hashing two megabytes takes milliseconds.
    manifest = read_manifest(folder)
    problems = file_problems(folder, manifest) if manifest else [f"{folder / MANIFEST}: not found"]
    if problems:
        raise DataError(f"{problems[0]}; remove {folder} to have it made again")
    return folder / "text"


def _fingerprint(vocabulary: int) -> str:
    made_from = (
        f"{platform.python_implementation()} {platform.python_version()} {vocabulary} {VERSION} {library.VERSION}"
    )
    return blake2b(made_from.encode(), digest_size=6).hexdigest()


def _write(folder: Path, vocabulary: int) -> None:
    # Only the process that builds imports numpy and tokenizers.
    import numpy as np

    from recipe_megatron_gpt.data.indexed import IndexedWriter, best_dtype

    notice("training a tokenizer on the English text of Python's library, once")
    texts = library.documents(Path(sysconfig.get_paths()["stdlib"]))
    tokenizer = train_tokenizer(texts, vocabulary)
    end = tokenizer.token_to_id(END)
    folder.mkdir()
    with IndexedWriter(folder / "text", best_dtype(vocabulary)) as writer:
        for encoding in tokenizer.encode_batch(texts):
            writer.add_document([np.array([*encoding.ids, end])])
    # the library's own save ignores a full disk
    (folder / TOKENIZER).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    files = file_facts(folder, ["text.bin", "text.idx", TOKENIZER])
    (folder / MANIFEST).write_text(manifest_text({"files": files}), encoding="utf-8")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE (as GPT-2's) of at most ``vocabulary`` entries, the first of them :data:`END`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
