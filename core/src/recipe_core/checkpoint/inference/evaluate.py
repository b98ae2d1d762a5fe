"""``recipe eval``: loss, perplexity and bits per byte of a causal language model, with a sliding window over a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipe_core.checkpoint.inference.text import Text, require_text, text_of, vocabulary_of, window_of
from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.errors import ConfigError, PluginError
from recipe_core.files.documents import DocumentError, read_text
from recipe_core.hooks.inference import Evaluation, TokenDocuments
from recipe_core.hooks.specs import Dataset
from recipe_core.hooks.target import call

BATCH = 8
"""Windows in a batch."""


@dataclass(frozen=True)
class TokenStream:
    """The concatenated tokens to predict."""

    name: str
    ids: NDArray[np.int64]
    size: int | None
    """Bytes of the text of all predicted ids; None without a tokenizer."""
    documents: NDArray[np.int64] | None = None
    """The document of each id, of which the first is not predicted; None: only the first of all ids is not."""


def evaluate_text(trained: TrainedModel, options: Evaluation) -> dict[str, Any]:
    """Number of predicted ``tokens``, ``loss`` (nats per token), ``perplexity`` and, with a tokenizer,
    ``bits_per_byte`` and ``bytes`` of the predicted tokens; see :attr:`recipe_core.Model.evaluate`. Data wrappers are
    not applied to the documents of the run; ``data`` says so. A model that was trained with a document mask gets one.

    Raises:
        ConfigError: the data or a tokenizer is not known, or a setting does not fit the model.
        DataError: the data cannot be read.
    """
    window = window_of(trained, options.window)
    stride = options.stride or max(1, window // 2)
    if stride > window:
        raise ConfigError(
            f"--stride: expected at most {window:,}, the window, got {stride:,}: tokens would be left out"
        )
    vocabulary = vocabulary_of(trained)
    stream = _stream(trained, options, vocabulary)
    if stream.ids.size < 2:
        raise ConfigError(f"{stream.name}: expected two tokens or more, found {stream.ids.size}")
    if (largest := int(stream.ids.max())) >= vocabulary:
        raise ConfigError(
            f"{stream.name}: has token id {largest:,}, and the model has {vocabulary:,}; its data must be of the "
            "tokenizer that the model was trained with"
        )
    documents = None if stream.documents is None else torch.from_numpy(stream.documents)
    total, count = summed_loss(
        trained.module, torch.from_numpy(stream.ids), window, stride, options.batch or BATCH, documents
    )
    if not count:
        raise ConfigError(f"{stream.name}: expected a document of two tokens or more, found none")
    loss = total / count
    values = {"data": stream.name, "tokens": count, "loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    return (
        {**values, "bits_per_byte": total / math.log(2) / stream.size, "bytes": stream.size} if stream.size else values
    )


@torch.inference_mode()
def summed_loss(
    module: Any, ids: Tensor, window: int, stride: int, batch: int, documents: Tensor | None = None
) -> tuple[float, int]:
    """The summed loss in nats over all tokens but the first, each counted once, and the number of these tokens.

    With ``documents``, no token sees those of another document, and the first of each is not counted.

    The window moves by ``stride``. The first window counts all its tokens, later ones their last ``stride`` tokens,
    which have a context of at least ``window - stride`` tokens.

    Args:
        module: called with ``tokens`` and ``labels``; returns losses of the same shape.
        ids: int64 ``[tokens]``.
        window: tokens per forward pass.
        stride: at most ``window``.
        batch: windows in a batch.
        documents: number of each token's document, ascending: int64 ``[tokens]``.
    """
    device, total, count = next(module.parameters()).device, 0.0, len(ids) - 1
    for starts in _batches(count, window, stride, batch):
        width = min(window, count - starts[0])
        rows = torch.stack([ids[start : start + width + 1] for start in starts]).to(device)
        given = {"tokens": rows[:, :-1].contiguous(), "labels": rows[:, 1:].contiguous()}
        if documents is not None:
            numbers = torch.stack([documents[start : start + width + 1] for start in starts]).to(device)
            given["document_ids"] = numbers[:, :-1] - numbers[:, :1] + 1
            given["loss_mask"] = numbers[:, 1:] == numbers[:, :-1]
        losses = module(given).double()
        if documents is not None:
            losses = losses * given["loss_mask"]
        for start, row in zip(starts, losses, strict=True):
            total += float(row[window - stride if start else 0 :].sum())
    return total, count if documents is None else int((documents[1:] == documents[:-1]).sum())


def _batches(count: int, window: int, stride: int, batch: int) -> Iterator[list[int]]:
    # starts of windows over `count` predictions; those of a batch have the same width
    starts = list(range(0, max(count - window, 0) + stride, stride))
    whole = [start for start in starts if start + window <= count]
    yield from (whole[first : first + batch] for first in range(0, len(whole), batch))
    yield from ([start] for start in starts[len(whole) :])


def _stream(trained: TrainedModel, options: Evaluation, vocabulary: int) -> TokenStream:
    if options.data is None:
        documents = _documents(trained.data.spec, trained.data.config, None) if trained.data else None
        if documents is None:
            other = f"was trained on {trained.data.spec.name}, which has no text of its own" if trained.data else ""
            raise ConfigError(
                f"{trained.path}: it {other or 'does not say what data it was trained on'}; name some: --data PATH"
            )
        return _of_tokens(trained, "validation" + _left_out(trained), documents, options)
    path = Path(options.data).expanduser()
    for spec, config in _readers(trained):
        if (documents := _documents(spec, config, path)) is not None:
            if documents.tokenizer:
                trained.require_tokenizer(documents.tokenizer, f"--data {options.data}", options.accept)
            return _of_tokens(trained, options.data, documents, options)
    return _of_text(path, require_text(trained, options.tokenizer, options.accept), vocabulary, options.limit)


def _readers(trained: TrainedModel) -> list[tuple[Dataset, Any]]:
    """Datasets that may know a prepared set: that of the run, or else all that read documents."""
    if trained.data is not None and trained.data.spec.documents:
        return [(trained.data.spec, trained.data.config)]
    return [(spec, spec.config()) for spec in trained.datasets if spec.documents]


def _documents(spec: Dataset, config: Any, path: Path | None) -> TokenDocuments | None:
    if not spec.documents:
        return None
    documents = call(spec.documents, f"dataset {spec.name!r}", config, path)
    if not isinstance(documents, TokenDocuments | None):
        raise PluginError(
            f"dataset {spec.name!r}: {spec.documents!r} returned {documents!r:.60}; expected a TokenDocuments"
        )
    return documents


def _left_out(trained: TrainedModel) -> str:
    # Wrappers select and change samples, and here a window slides over whole documents.
    names = ", ".join(wrapper.spec.name for wrapper in trained.data.wrappers) if trained.data else ""
    return f" without {names}" if names else ""


def _of_tokens(trained: TrainedModel, name: str, documents: TokenDocuments, options: Evaluation) -> TokenStream:
    if not documents.ids:
        raise ConfigError(f"{name}: holds no document; name other data: --data PATH")
    text = text_of(trained, options.tokenizer, options.accept)
    ids = np.concatenate(documents.ids)[: None if options.limit is None else options.limit + 1].astype(np.int64)
    if not documents.document_mask:
        ends = np.flatnonzero(ids[1:] == text.end) if text is not None and text.end is not None else ()
        return TokenStream(name, ids, _bytes_of(text, np.split(ids[1:], ends)))
    numbers = np.repeat(np.arange(len(documents.ids)), [len(part) for part in documents.ids])[: ids.size]
    firsts = np.flatnonzero(np.diff(numbers)) + 1
    size = _bytes_of(text, [part[1:] for part in np.split(ids, firsts)])
    return TokenStream(f"{name} with a document mask", ids, size, numbers)


def _bytes_of(text: Text | None, parts: list[NDArray[np.int64]]) -> int | None:
    # the end of a document has no bytes
    if text is None:
        return None
    return sum(len(text.decode([n for n in part.tolist() if n != text.end]).encode()) for part in parts)


def _of_text(path: Path, text: Text, vocabulary: int, limit: int | None) -> TokenStream:
    try:
        content = read_text(path)
    except (OSError, DocumentError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--data: {path}: neither token files (.bin and .idx) nor a text ({reason})") from error
    ids = text.encode(content, vocabulary) if content.strip() else []
    if limit is not None and limit + 1 < len(ids):
        ids = ids[: limit + 1]
        size = len(text.decode(ids[1:]).encode())
    else:
        size = len(content.encode()) - len(text.decode(ids[:1]).encode())
    return TokenStream(str(path), np.array(ids, dtype=np.int64), size)
