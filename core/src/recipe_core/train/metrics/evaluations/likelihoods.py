"""Log-likelihoods of texts: windows of token ids, batches of similar length, and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from recipe_core.errors import ConfigError
from recipe_core.hooks.inference import Scorer


@dataclass(frozen=True)
class Likelihood:
    """The log-likelihood of a text, or of a continuation."""

    total: float
    """In nats."""
    tokens: int
    """Tokens that were predicted."""
    greedy: bool
    """True if each of them was the most likely one."""

    def __add__(self, other: Likelihood) -> Likelihood:
        return Likelihood(self.total + other.total, self.tokens + other.tokens, self.greedy and other.greedy)


@dataclass(frozen=True)
class Piece:
    """Token ids to predict in one window, after others."""

    text: int
    """The number of the text that it belongs to."""
    before: tuple[int, ...]
    predicted: tuple[int, ...]


def pieces_of(scorer: Scorer, number: int, context: str, continuation: str) -> Iterator[Piece]:
    """Yield the windows in which ``continuation`` is predicted.

    Raises:
        ConfigError: it has no token.
    """
    before = scorer.encode(context) if context else [scorer.first]
    ids = scorer.encode(continuation) if continuation else []
    if not ids:
        raise ConfigError(f"the text {continuation!r:.60} has no token; give another one")
    whole, start = [*before, *ids], len(before)
    size = scorer.window
    while start < len(whole):
        end = min(start + size, len(whole))
        yield Piece(number, tuple(whole[max(0, end - scorer.window - 1) : start]), tuple(whole[start:end]))
        start, size = end, max(1, scorer.window // 2)


def batches_of(pieces: Sequence[Piece], size: int) -> list[list[Piece]]:
    """Return the pieces in batches of similar length."""
    order = sorted(pieces, key=lambda piece: -len(piece.before) - len(piece.predicted))
    return [order[start : start + size] for start in range(0, len(order), size)]


def scores_of(scorer: Scorer, batch: Sequence[Piece], device: torch.device) -> list[Likelihood]:
    """Return the likelihood of each piece of a batch."""
    rows = [torch.tensor([*piece.before, *piece.predicted]) for piece in batch]
    given = pad_sequence([row[:-1] for row in rows], batch_first=True, padding_value=scorer.first)
    logits = scorer.logits(given.to(device))
    scores = []
    for piece, row, values in zip(batch, rows, logits, strict=True):
        count = len(piece.predicted)
        wanted = row[-count:].to(values.device)
        shares = values[len(row) - 1 - count : len(row) - 1].float().log_softmax(-1)
        total = float(shares.gather(1, wanted[:, None]).double().sum())
        scores.append(Likelihood(total, count, bool((shares.argmax(-1) == wanted).all())))
    return scores
