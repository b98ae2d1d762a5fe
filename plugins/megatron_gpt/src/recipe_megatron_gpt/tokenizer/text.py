"""Token ids of a dataset as text, and back, by the tokenizer that made them. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.files import home
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.sources import parse
from recipe_megatron_gpt.settings import GptIndexed
from recipe_megatron_gpt.tokenizer.vocabulary import read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def decode(config: GptIndexed, ids: Iterable[int], cache: Path | None = None) -> str | None:
    """The text of ``ids``, ends of documents included; None where the dataset knows no tokenizer."""
    tokenizer = load(config, cache)
    return None if tokenizer is None else tokenizer.decode(list(ids), skip_special_tokens=False)


def encode(config: GptIndexed, text: str, cache: Path | None = None) -> list[int] | None:
    """The token ids of ``text``; None where the dataset knows no tokenizer."""
    tokenizer = load(config, cache)
    return None if tokenizer is None else list(tokenizer.encode(text).ids)


def load(config: GptIndexed, cache: Path | None = None) -> Tokenizer | None:
    """The tokenizer of a dataset.

    It is what the setting ``tokenizer`` names, or the tokenizer.json beside the token files, or that of the embedded
    corpus, which is prepared in ``cache`` (the user's, unless given) where no file is named.

    Raises:
        DataError: the file is missing or no tokenizer.
    """
    path = tokenizer_file(config)
    if path is None and not config.files:
        path = corpus.prepare(cache or home(), config.vocabulary).with_name(corpus.TOKENIZER)
    return None if path is None else read_tokenizer(path)


def tokenizer_file(config: GptIndexed) -> Path | None:
    """The tokenizer.json that goes with the files of ``config``, if there is one."""
    if config.tokenizer is not None:
        return Path(config.tokenizer).expanduser()
    beside = (source.prefix.with_name(corpus.TOKENIZER) for source in parse(config.files))
    return next((path for path in beside if path.is_file()), None)
