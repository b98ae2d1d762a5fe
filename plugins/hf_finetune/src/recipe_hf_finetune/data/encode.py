"""Texts as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from recipe_core import ConfigError
from recipe_core.data.identity import differences, require_accepted, tokenizer_digest
from recipe_core.data.tokenizer import require_pair, require_tokenizer
from recipe_hf_finetune.data.examples import Examples
from recipe_hf_finetune.settings import SequenceClassifier


class Encoded(Dataset[dict[str, Any]]):
    """The tokenized samples of a split, with their labels."""

    def __init__(self, columns: dict[str, list[Any]], labels: Sequence[int] | Sequence[float] | None) -> None:
        self.columns, self.labels = columns, labels

    def __len__(self) -> int:
        return len(self.columns["input_ids"])

    def __getitem__(self, number: int) -> dict[str, Any]:
        sample = {name: values[number] for name, values in self.columns.items()}
        return sample if self.labels is None else {**sample, "labels": self.labels[number]}

    def first(self, count: int) -> Encoded:
        """The first ``count`` samples."""
        columns = {name: values[:count] for name, values in self.columns.items()}
        return Encoded(columns, None if self.labels is None else self.labels[:count])

    def tensors(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """Samples of equal length as tensors ``[samples, tokens]``; their labels ``[samples]``."""
        batch = {name: torch.tensor([values[n] for n in numbers]) for name, values in self.columns.items()}
        return batch if self.labels is None else {**batch, "labels": torch.tensor([self.labels[n] for n in numbers])}


def encode(examples: Examples, tokenizer: Any, max_length: int, *, pad: bool) -> Encoded:
    """Tokenize ``examples``, truncated and (with ``pad``) padded to ``max_length`` tokens.

    Raises:
        ConfigError: the tokenizer fails, for example because its vocabulary lacks the unknown token.
    """
    padding = "max_length" if pad else False
    try:
        columns = tokenizer(*examples.texts, padding=padding, max_length=max_length, truncation=True)
    except Exception as error:  # the library tokenizers raises no narrower type
        text = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"model.tokenizer: {tokenizer.name_or_path}: cannot make tokens of the texts ({text}); it is damaged or "
            "incomplete: restore it, or name another with model.tokenizer=FOLDER"
        ) from error
    return Encoded(dict(columns), examples.labels)


def load_tokenizer(place: str | Path, revision: str = "main") -> Any:
    """Load the tokenizer from a folder or, by name, from the hub.

    Raises:
        ConfigError: there is none, or it has no token for padding.
    """
    from transformers import AutoTokenizer

    file, vocabulary, merges = (Path(place) / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if file.is_file():
        require_tokenizer(file)
    elif vocabulary.is_file() and merges.is_file():
        require_pair(vocabulary, merges)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(place), revision=revision)
    except Exception as error:  # OSError, ValueError and others: what is missing, in transformers' words
        text = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"model.tokenizer: {place}: no tokenizer can be had ({text}); name a folder with vocab.txt or "
            "tokenizer.json: model.tokenizer=FOLDER"
        ) from error
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ConfigError(
                f"model.tokenizer: {place}: has no token for padding, nor one for the end of a text; name another"
            )
        # The usual choice for GPT-2, whose classification head reads the last token before padding.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def texts_of(tokenizer: Any) -> dict[str, str]:
    """The serialised fast tokenizer under its file name; empty for slow ones."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return {} if backend is None else {"tokenizer.json": backend.to_str()}


def require_same(tokenizer: Any, own: Any, config: SequenceClassifier, accept: str | None) -> None:
    """Require that ``tokenizer``, named by ``model.tokenizer``, equals the weights' ``own``.

    Raises:
        ConfigError: they differ, and ``accept`` does not accept it.
    """
    configured, expected = ({"tokenizer": tokenizer_digest(texts_of(t))} for t in (tokenizer, own))
    head = f"model.tokenizer: {config.tokenizer} is not the tokenizer of model.source ({config.source})"
    problems = differences(expected, configured)
    require_accepted(problems, accept, head, "Leave model.tokenizer out to use the one of the weights", "train.accept=")


def require_vocabulary(tokenizer: Any, size: int, place: object) -> None:
    """Require that all token ids are below ``size``, the model's number of embeddings.

    Raises:
        ConfigError: the tokenizer has more.
    """
    if len(tokenizer) > size:
        raise ConfigError(
            f"model.tokenizer: gives token ids up to {len(tokenizer) - 1:,}, and the model in {place} knows those "
            f"below {size:,}; name the tokenizer that the model was trained with (model.tokenizer), or another model"
        )
