"""Facts, indices, tokenizer and identity of the dataset ``mixture``: those of its parts together. No torch here.

They are apart from the settings, which every command imports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from recipe_core.data.identity import NO_PHASES, PHASES, Identity, identity_of, tokenizer_digest
from recipe_core.data.mixture import Mixture, period, require_parts
from recipe_core.hooks.facts import DataFacts, DataIdentity, IndexFacts
from recipe_core.hooks.specs import Part
from recipe_core.hooks.specs.wrapper import WRAPPERS
from recipe_core.hooks.target import call
from recipe_core.hooks.train import Train
from recipe_core.settings.facts import Facts, data_facts


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
        document_mask=any(one.document_mask for one in known.values()),
        attended_pairs=_attended_pairs(config, known),
        problems=(*_problems_of_parts(known), *_mismatches(config, known)),
    )


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _attended_pairs(config: Mixture, known: Mapping[str, DataFacts]) -> float:
    counts = period(config)
    return sum(counts[name] * one.attended_pairs for name, one in known.items()) / sum(counts.values())


def _problems_of_parts(known: Mapping[str, DataFacts]) -> Iterator[str]:
    for name, one in known.items():
        for problem in one.problems:
            inner = problem.removeprefix("data.")
            yield f"data.parts.{name}{'.' if inner != problem else ': '}{inner}"


def _mismatches(config: Mixture, known: Mapping[str, DataFacts]) -> Iterator[str]:
    if len({one.sequence for one in known.values()}) > 1:
        lengths = ", ".join(f"{name} {one.sequence:,}" for name, one in known.items())
        yield f"data.parts: samples must have one length, and have ({lengths}) tokens; give all the same"
    if len({one.document_mask for one in known.values()}) > 1:
        masked = ", ".join(name for name, one in known.items() if one.document_mask)
        yield (
            f"data.parts: of {', '.join(known)} only {masked} masks documents from each other (document_mask), and all "
            "samples must have the same tensors; give all parts the same setting"
        )
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
        inner = {WRAPPERS: "none", PHASES: one.record.get(PHASES, NO_PHASES), **one.record.get("order", {})}
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
