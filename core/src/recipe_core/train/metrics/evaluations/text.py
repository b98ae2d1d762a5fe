"""The loss on a text, in bits per byte, which can be compared between tokenizers."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable
from pathlib import Path

from recipe_core.errors import ConfigError
from recipe_core.files.documents import read_data
from recipe_core.train.metrics.evaluations.model import EvaluatedModel
from recipe_core.train.metrics.evaluations.settings import TextFile


def build(config: TextFile, model: EvaluatedModel) -> Callable[[], dict[str, float]]:
    """``bits_per_byte``, and ``loss`` in nats per token.

    Raises:
        ConfigError: the text cannot be read, or has no token.
    """
    text = _read(config)
    size = len(text.encode())
    model.scorer  # noqa: B018  # without a tokenizer, a run ends before its first step

    def measure() -> dict[str, float]:
        (found,) = model.loglikelihoods([text])
        return {"bits_per_byte": -found.total / math.log(2) / size, "loss": -found.total / found.tokens}

    return measure


def _read(config: TextFile) -> str:
    path = Path(config.file).expanduser()
    try:
        content = read_data(path)
        # the last character may be cut
        text = codecs.getincrementaldecoder("utf-8")().decode(content[: config.most], len(content) <= config.most)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"evaluation.text.file: {path}: cannot be read as a text in UTF-8 ({reason})") from error
    if not text.strip():
        raise ConfigError(f"evaluation.text.file: {path}: it holds no text")
    return text
