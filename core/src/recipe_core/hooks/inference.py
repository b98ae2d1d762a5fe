"""Settings of ``recipe generate`` and ``recipe eval``, as functions of a model get them. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Settings of ``recipe generate``; None: not given, and the model's function has a default of its own.

    Raises:
        ConfigError: a value is out of range; one message names all of them.
    """

    tokens: int | None = None
    """New tokens at most."""
    temperature: float | None = None
    """Logits are divided by it; 0 takes the likeliest token."""
    top_k: int | None = None
    """Only so many of the likeliest tokens count."""
    top_p: float | None = None
    """Only the likeliest tokens count that together have this probability."""
    seed: int | None = None
    """Seed of the random draws; every prompt begins with it."""
    stop: tuple[str, ...] = ()
    """Texts that end a generation; they are cut off."""
    window: int | None = None
    """Tokens that the model sees at once."""
    tokenizer: Path | None = None
    """File or folder of the tokenizer, instead of the one that is known."""
    accept: str | None = None
    """The word of a difference between recorded and present tokenizers that the user accepts."""

    def __post_init__(self) -> None:
        problems = [_below(self, name, 1) for name in ("tokens", "top_k", "window")] + [_below(self, "seed", 0)]
        if self.seed is not None and self.seed >= 1 << 63:
            problems.append(f"--seed: expected less than 2^63, got {self.seed}")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            problems.append(f"--temperature: expected 0 or more, got {self.temperature}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            problems.append(f"--top-p: expected more than 0 and at most 1, got {self.top_p}")
        if "" in self.stop:
            problems.append("--stop: expected a text, got an empty one")
        _refuse(problems)

    def require_only(self, model: str, *names: str) -> None:
        """Refuse settings that ``model`` has no use for.

        Raises:
            ConfigError: a setting other than ``names`` is given.
        """
        _require_only(self, model, names)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Settings of ``recipe eval`` for one checkpoint and one set of data; None: not given.

    Raises:
        ConfigError: a value is out of range; one message names all of them.
    """

    data: str | None = None
    """Data to evaluate on: a prepared set, or a file; None: the validation data of the run."""
    window: int | None = None
    """Tokens that the model sees at once."""
    stride: int | None = None
    """Tokens by which a sliding window moves."""
    limit: int | None = None
    """Tokens or samples to evaluate at most."""
    batch: int | None = None
    """Samples, or windows, that the model is given at once."""
    tokenizer: Path | None = None
    """File or folder of the tokenizer, instead of the one that is known."""
    accept: str | None = None
    """The word of a difference between recorded and present data or tokenizers that the user accepts."""

    def __post_init__(self) -> None:
        _refuse([_below(self, name, 1) for name in ("window", "stride", "limit", "batch")])

    def require_only(self, model: str, *names: str) -> None:
        """Refuse settings that ``model`` has no use for.

        Raises:
            ConfigError: a setting other than ``names`` is given.
        """
        _require_only(self, model, names)


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A causal language model as a function of token ids, for the tasks of ``recipe eval --tasks``."""

    encode: Callable[[str], list[int]]
    """The ids of a text, nothing added."""
    first: int
    """The id before the first token of a text: mostly the one that ends a document."""
    window: int
    """Tokens that the model sees at once."""
    logits: Callable[[Tensor], Tensor]
    """From ids, int64 ``[batch, sequence]`` on the model's device, to next-token logits, ``[batch, sequence,
    vocabulary]``. Shorter rows are padded at their end with ``first``."""


def _below(settings: object, name: str, least: int) -> str | None:
    value = getattr(settings, name)
    if value is None or value >= least:
        return None
    return f"{_option(name)}: expected at least {least}, got {value}"


def _refuse(problems: list[str | None]) -> None:
    if wrong := [problem for problem in problems if problem]:
        raise ConfigError.of(wrong)


def _require_only(settings: Generation | Evaluation, model: str, names: tuple[str, ...]) -> None:
    usable = ", ".join(map(_option, names)) or "none"
    _refuse(
        [
            f"{_option(field.name)}: model {model!r} has no use for it (it takes: {usable})"
            for field in fields(settings)
            if field.name not in (*names, "accept") and getattr(settings, field.name) != field.default
        ]
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
