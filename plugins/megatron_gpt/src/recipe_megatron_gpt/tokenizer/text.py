"""Token ids of a dataset to text and back, with its tokenizer. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core import DataError
from recipe_core.checkpoint.inference.tokenizer import read_tokenizer
from recipe_core.files import home
from recipe_core.files.objects.copies import local_file
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.sources import parse
from recipe_megatron_gpt.settings import GptIndexed

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def decode(config: GptIndexed, ids: Iterable[int], cache: Path | None = None) -> str | None:
    """The text of ``ids``, including ends of documents; None if the dataset has no tokenizer."""
    tokenizer = load(config, cache)
    return None if tokenizer is None else tokenizer.decode(list(ids), skip_special_tokens=False)


def encode(config: GptIndexed, text: str, cache: Path | None = None) -> list[int] | None:
    """The token ids of ``text``; None if the dataset has no tokenizer."""
    tokenizer = load(config, cache)
    return None if tokenizer is None else list(tokenizer.encode(text).ids)


def load(config: GptIndexed, cache: Path | None = None) -> Tokenizer | None:
    """The tokenizer of a dataset.

    It is the one of the setting ``tokenizer``, or the tokenizer.json next to the token files, or that of the embedded
    corpus, which is prepared in ``cache`` (by default the user's) if there are no files.

    Raises:
        DataError: the file is missing or not a tokenizer.
    """
    path = tokenizer_file(config)
    if path is None and not config.files:
        path = corpus.prepare(cache or home(), config.vocabulary).with_name(corpus.TOKENIZER)
    return None if path is None else read_tokenizer(path)


def tokenizer_file(config: GptIndexed) -> Path | None:
    """The tokenizer.json of ``config``: its setting, or next to its files; None if there is none, or no such files."""
    if config.tokenizer is not None:
        return Path(config.tokenizer).expanduser()
    try:
        folders = dict.fromkeys(source.prefix.parent for source in parse(config.files))
    except DataError:  # reported when the files are opened
        return None
    return next((path for folder in folders if (path := local_file(folder / corpus.TOKENIZER)) is not None), None)
