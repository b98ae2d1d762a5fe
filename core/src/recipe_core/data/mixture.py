"""The dataset ``mixture``: its settings, proportions, facts and identity. No torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import Any

from recipe_core.data.identity import Identity, identity_of, tokenizer_digest
from recipe_core.errors import ConfigError, did_you_mean
from recipe_core.hooks.facts import DataFacts, DataIdentity, IndexFacts
from recipe_core.hooks.specs import Part
from recipe_core.hooks.specs.wrapper import WRAPPERS, dataset_parts
from recipe_core.hooks.target import call
from recipe_core.hooks.train import Train
from recipe_core.settings.facts import Facts, data_facts

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


def facts(config: Mixture) -> DataFacts | None:
    """Return the facts of the parts together; None if one of them has none."""
    require_parts(config)
    every = {name: data_facts(part) for name, part in config.parts.items()}
    known = {name: one for name, one in every.items() if one is not None}
    if len(known) < len(every):
        return None
    vocabularies = [one.vocabulary for one in known.values() if one.vocabulary is not None]
    return DataFacts(
        sequence=max(one.sequence for one in known.values()),
        vocabulary=max(vocabularies) if len(vocabularies) == len(known) else None,
        train_samples=_sum([one.train_samples for one in known.values()]),
        valid_samples=_sum([one.valid_samples for one in known.values()]),
        problems=(*_problems_of_parts(known), *_mismatches(config, known)),
    )


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _problems_of_parts(known: Mapping[str, DataFacts]) -> Iterator[str]:
    for name, one in known.items():
        for problem in one.problems:
            inner = problem.removeprefix("data.")
            yield f"data.parts.{name}{'.' if inner != problem else ': '}{inner}"


def _mismatches(config: Mixture, known: Mapping[str, DataFacts]) -> Iterator[str]:
    if len({one.sequence for one in known.values()}) > 1:
        lengths = ", ".join(f"{name} {one.sequence:,}" for name, one in known.items())
        yield f"data.parts: samples must have one length, and have ({lengths}) tokens; give all the same"
    if any(one.problems for one in known.values()):  # a tokenizer may not be readable
        return
    digests = {name: digest for name, part in config.parts.items() if (digest := tokenizer_digest(_tokenizer(part)))}
    if len(set(digests.values())) > 1:
        found = ", ".join(f"{name} {digest[:12]}" for name, digest in digests.items())
        yield (
            f"data.parts: the parts have different tokenizers (digests: {found}), so that one id means several tokens; "
            "prepare all with one tokenizer"
        )
    bounds = {name: one.vocabulary for name, one in known.items() if one.vocabulary is not None}
    if len(digests) < len(known) and len(set(bounds.values())) > 1:
        found = ", ".join(f"{name} {bound:,}" for name, bound in bounds.items())
        yield f"data.parts: the parts have vocabularies of different sizes ({found}); encode all with one vocabulary"


def _tokenizer(part: Part[Any]) -> dict[str, str]:
    spec = part.spec
    return (call(spec.tokenizer, f"dataset {spec.name!r}", part.config) if spec.tokenizer else None) or {}


def tokenizer(config: Mixture) -> dict[str, str]:
    """Return the tokenizer of the parts: that of the first that knows its own; they have the same."""
    return next((texts for part in config.parts.values() if (texts := _tokenizer(part))), {})


def indices(config: Mixture, train: Train) -> IndexFacts:
    """Return what the indices of the parts need together; they are built one after the other."""
    every = [one for part in config.parts.values() if (one := Facts(None, part).indices(train)) is not None]
    return IndexFacts(
        memory=max((one.memory for one in every), default=0),
        disk=sum(one.disk for one in every),
        files=sum(one.files for one in every),
        maps=sum(one.maps for one in every),
        advice=next((one.advice for one in every if one.advice), ""),
        problems=tuple(problem for one in every for problem in one.problems),
    )


def identity(config: Mixture) -> DataIdentity:
    """Return the identities of the parts as one."""
    every = {name: identity_of(part) for name, part in config.parts.items()}
    order: dict[str, Any] = {"weights": ", ".join(f"{count} of {name}" for name, count in period(config).items())}
    for name, one in every.items():
        order[f"parts.{name}.use"] = config.parts[name].spec.name
        inner = {WRAPPERS: "none", **one.record.get("order", {})}
        order |= {f"parts.{name}.{key}": value for key, value in inner.items()}
    manifests = [one.record.get("manifest") for one in every.values()]
    return DataIdentity(
        content=_combined(every, "content"),
        manifest=_combined(every, "manifest") if all(manifests) else "",
        order=order,
        conflicts=tuple(f"{name}: {conflict}" for name, one in every.items() for conflict in one.conflicts),
    )


def _combined(every: Mapping[str, Identity], key: str) -> str:
    digests = {name: one.record.get(key, "") for name, one in every.items()}
    return sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:32] if any(digests.values()) else ""
