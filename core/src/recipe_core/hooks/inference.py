"""Settings of ``recipe generate`` and ``recipe eval``, which a model's functions get. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Options of a command that the function of a model gets."""

    def require_only(self, model: str, *names: str) -> None:
        """Refuse settings that ``model`` does not use.

        Raises:
            ConfigError: a setting other than ``names`` is given.
        """
        usable = ", ".join(map(_option, names)) or "none"
        _refuse(
            [
                f"{_option(field.name)}: model {model!r} has no use for it (it takes: {usable})"
                for field in fields(self)
                if field.name not in (*names, "accept") and getattr(self, field.name) != field.default
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Generation(_Options):
    """Settings of ``recipe generate``; None: not given, for which the model's function has its own default.

    Raises:
        ConfigError: a value is out of range; one message names all of them.
    """

    tokens: int | None = None
    """New tokens at most."""
    temperature: float | None = None
    """Divisor of the logits; 0: take the most likely token."""
    top_k: int | None = None
    """Sample from the K most likely tokens."""
    top_p: float | None = None
    """Sample from the most likely tokens that together have this probability."""
    seed: int | None = None
    """Seed of the generator, which is reseeded for each prompt."""
    stop: tuple[str, ...] = ()
    """Texts that end a generation; they are cut off."""
    window: int | None = None
    """Context window in tokens."""
    tokenizer: Path | None = None
    """File or folder of the tokenizer, instead of the recorded one."""
    accept: str | None = None
    """Key of a difference between the recorded and the present tokenizer that the user accepts."""

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


@dataclass(frozen=True, kw_only=True)
class Evaluation(_Options):
    """Settings of ``recipe eval`` for one checkpoint and one set of data; None: not given.

    Raises:
        ConfigError: a value is out of range; one message names all of them.
    """

    data: str | None = None
    """Data to evaluate on: a prepared set, or a file; None: the validation data of the run."""
    window: int | None = None
    """Context window in tokens."""
    stride: int | None = None
    """Tokens by which a sliding window moves."""
    limit: int | None = None
    """Tokens or samples to evaluate at most."""
    batch: int | None = None
    """Samples or windows in a batch."""
    tokenizer: Path | None = None
    """File or folder of the tokenizer, instead of the recorded one."""
    accept: str | None = None
    """Key of a difference between the recorded and the present data or tokenizer that the user accepts."""

    def __post_init__(self) -> None:
        _refuse([_below(self, name, 1) for name in ("window", "stride", "limit", "batch")])


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A causal language model as a function of token ids, for the tasks of ``recipe eval --tasks``."""

    encode: Callable[[str], list[int]]
    """Token ids of a text, without special tokens."""
    first: int
    """Id before the first token of a text, usually that of the end of a document."""
    window: int
    """Context window in tokens."""
    logits: Callable[[Tensor], Tensor]
    """From ids, int64 ``[batch, sequence]`` on the model's device, to next-token logits, ``[batch, sequence,
    vocabulary]``. Shorter rows are padded at their end with ``first``."""


@dataclass(frozen=True, kw_only=True)
class TokenDocuments:
    """Documents as token ids, for ``recipe eval`` of a causal language model."""

    ids: Sequence[NDArray[Any]]
    """Token ids of each document, integers ``[tokens]``."""
    tokenizer: Mapping[str, str] = field(default_factory=dict)
    """Names and texts of the files of their tokenizer; empty: not known."""
    document_mask: bool = False
    """The model keeps them apart, as in its training."""


def _below(settings: object, name: str, least: int) -> str | None:
    value = getattr(settings, name)
    if value is None or value >= least:
        return None
    return f"{_option(name)}: expected at least {least}, got {value}"


def _refuse(problems: list[str | None]) -> None:
    if wrong := [problem for problem in problems if problem]:
        raise ConfigError.of(wrong)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
