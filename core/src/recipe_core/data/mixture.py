"""The settings of the dataset ``mixture``, and its proportions. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from recipe_core.errors import ConfigError, did_you_mean
from recipe_core.hooks.specs.wrapper import dataset_parts

LONGEST = 10_000
"""Samples of a period at most: the precision of the weights."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Samples of several datasets."""

    parts: Mapping[str, Any] = dataset_parts()
    """The datasets by names of your choice, each with the settings of a section ``data``:
    ``data.parts.books.use=gpt_indexed data.parts.books.files=books.bin``. A part may have ``wrappers`` of its own."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Samples of each part in proportion to the others, 1 unless given: ``data.weights.books=3``."""

    def __post_init__(self) -> None:
        unknown = [
            f"weights: {name!r} is no part{did_you_mean(name, self.parts)} (parts: {', '.join(self.parts) or 'none'})"
            for name in self.weights
            if name not in self.parts
        ]
        wrong = [
            f"weights: expected a number above 0 for {name!r}, got {weight}; leave out a part that is not wanted"
            for name, weight in self.weights.items()
            if not weight > 0
        ]
        if unknown or wrong:
            raise ValueError("\n".join([*unknown, *wrong]))
        if rare := [name for name, count in period(self).items() if not count]:
            raise ValueError(
                f"weights: {rare[0]!r} would have fewer than 1 of {LONGEST:,} samples; raise its weight, or leave "
                "it out"
            )


def period(config: Mixture) -> dict[str, int]:
    """Return how many samples of each part make a period, after which the choices of parts repeat.

    The weights in lowest terms (3 and 1 for 0.75 and 0.25), which are exact; if they add up to more than
    :data:`LONGEST`, that many samples, shared out by largest remainders.
    """
    weights = {name: Fraction(str(config.weights.get(name, 1.0))) for name in config.parts}
    if not weights:
        return {}
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    length = math.lcm(*(share.denominator for share in shares.values()))
    if length <= LONGEST:
        return {name: int(share * length) for name, share in shares.items()}
    counts = {name: int(share * LONGEST) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: counts[name] - shares[name] * LONGEST)
    for name in by_remainder[: LONGEST - sum(counts.values())]:
        counts[name] += 1
    return counts


def require_parts(config: Mixture) -> None:
    """Refuse a mixture of nothing.

    Raises:
        ConfigError: it has no parts.
    """
    if not config.parts:
        raise ConfigError("data.parts: names no datasets; add at least one: data.parts.NAME.use=DATASET")
