"""``recipe eval``: loss, perplexity and bits per byte of a GPT, with a sliding window over a text."""

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

from recipe_core import ConfigError, Evaluation, TrainedModel
from recipe_core.files import home
from recipe_core.files.documents import DocumentError, read_text
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.header import idx_path
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.sources import TokenFiles, parse, prefix_of, split_ranges
from recipe_megatron_gpt.inference.tokens import Text, require_text, text_of, window_of
from recipe_megatron_gpt.settings import GptIndexed

BATCH = 8
"""Windows in a batch."""


@dataclass(frozen=True)
class TokenStream:
    """The concatenated tokens to predict."""

    name: str
    ids: NDArray[np.int64]
    size: int | None
    """Bytes of the text of all ids but the first, which is not predicted; None without a tokenizer."""


def evaluate(trained: TrainedModel, options: Evaluation) -> dict[str, Any]:
    """Number of predicted ``tokens``, ``loss`` (nats per token), ``perplexity`` and, with a tokenizer,
    ``bits_per_byte`` and ``bytes`` of the predicted tokens; see :attr:`recipe_core.Model.evaluate`. Data wrappers are
    not applied to the documents of the run; ``data`` says so.

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
    stream = _stream(trained, options)
    vocabulary = int(trained.model.config.vocabulary)
    if stream.ids.size < 2:
        raise ConfigError(f"{stream.name}: expected two tokens or more, found {stream.ids.size}")
    if (largest := int(stream.ids.max())) >= vocabulary:
        raise ConfigError(
            f"{stream.name}: has token id {largest:,}, and the model has {vocabulary:,}; its data must be of the "
            "tokenizer that the model was trained with"
        )
    total, count = summed_loss(trained.module, torch.from_numpy(stream.ids), window, stride, options.batch or BATCH)
    loss = total / count
    values = {"data": stream.name, "tokens": count, "loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    return (
        {**values, "bits_per_byte": total / math.log(2) / stream.size, "bytes": stream.size} if stream.size else values
    )


@torch.inference_mode()
def summed_loss(module: Any, ids: Tensor, window: int, stride: int, batch: int) -> tuple[float, int]:
    """The summed loss in nats over all tokens but the first, each counted once, and the number of these tokens.

    The window moves by ``stride``. The first window counts all its tokens, later ones their last ``stride`` tokens,
    which have a context of at least ``window - stride`` tokens.

    Args:
        module: called with ``tokens`` and ``labels``; returns losses of the same shape.
        ids: int64 ``[tokens]``.
        window: tokens per forward pass.
        stride: at most ``window``.
        batch: windows in a batch.
    """
    device, total, count = next(module.parameters()).device, 0.0, len(ids) - 1
    for starts in _batches(count, window, stride, batch):
        width = min(window, count - starts[0])
        rows = torch.stack([ids[start : start + width + 1] for start in starts]).to(device)
        losses = module({"tokens": rows[:, :-1].contiguous(), "labels": rows[:, 1:].contiguous()}).double()
        for start, row in zip(starts, losses, strict=True):
            total += float(row[window - stride if start else 0 :].sum())
    return total, count


def _batches(count: int, window: int, stride: int, batch: int) -> Iterator[list[int]]:
    # starts of windows over `count` predictions; those of a batch have the same width
    starts = list(range(0, max(count - window, 0) + stride, stride))
    whole = [start for start in starts if start + window <= count]
    yield from (whole[first : first + batch] for first in range(0, len(whole), batch))
    yield from ([start] for start in starts[len(whole) :])


def _stream(trained: TrainedModel, options: Evaluation) -> TokenStream:
    if options.data is None:
        data = trained.data.config if trained.data else None
        if not isinstance(data, GptIndexed):
            other = f"was trained on {trained.data.spec.name}, which has no text of its own" if trained.data else ""
            raise ConfigError(
                f"{trained.path}: it {other or 'does not say what data it was trained on'}; name some: --data PATH"
            )
        sources = parse(data.files) or [TokenFiles(corpus.prepare(home(), data.vocabulary), None)]
        files = [IndexedFile.open(source.prefix) for source in sources]
        ranges = [split_ranges(file.sizes.size, data.split)["valid"] for file in files]
        parts = [file.sequence(number) for file, numbers in zip(files, ranges, strict=True) for number in numbers]
        name = "validation" + _left_out(trained)
        return _of_tokens(name, parts, text_of(trained, options.tokenizer, options.accept), options.limit)
    path = Path(options.data).expanduser()
    try:
        prefix = prefix_of(path)
    except ValueError as error:
        raise ConfigError(f"--data: {str(error).removeprefix('files: ')}") from error
    if idx_path(prefix).is_file() or path.is_dir():
        tokenizer = prefix.with_name(corpus.TOKENIZER)
        if tokenizer.is_file():
            trained.require_tokenizer(
                {corpus.TOKENIZER: read_text(tokenizer)}, f"--data {options.data}", options.accept
            )
        file = IndexedFile.open(prefix)
        parts = [file.sequence(number) for number in range(file.sizes.size)]
        return _of_tokens(options.data, parts, text_of(trained, options.tokenizer, options.accept), options.limit)
    return _of_text(
        path, require_text(trained, options.tokenizer, options.accept), trained.model.config.vocabulary, options.limit
    )


def _left_out(trained: TrainedModel) -> str:
    # Wrappers select and change samples, and here a window slides over whole documents.
    names = ", ".join(wrapper.spec.name for wrapper in trained.data.wrappers) if trained.data else ""
    return f" without {names}" if names else ""


def _of_tokens(name: str, parts: list[Any], text: Text | None, limit: int | None) -> TokenStream:
    if not parts:
        raise ConfigError(f"{name}: holds no document; name other data: --data PATH")
    ids = np.concatenate(parts)[: None if limit is None else limit + 1].astype(np.int64)
    if text is None:
        return TokenStream(name, ids, None)
    ends = np.flatnonzero(ids[1:] == text.end) if text.end is not None else np.empty(0, np.int64)
    documents = np.split(ids[1:], ends)  # the end of a document has no bytes
    size = sum(len(text.decode([n for n in part.tolist() if n != text.end]).encode()) for part in documents)
    return TokenStream(name, ids, size)


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
