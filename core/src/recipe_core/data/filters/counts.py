"""Numbers of documents that filters dropped and changed, with samples of what was dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe_core.data.prepare.parts import PreparedPart
from recipe_core.errors import DataError

SAMPLES = 5
"""Samples of each filter: the first documents that it dropped."""
EXCERPT = 200
"""Characters of a sample."""


@dataclass
class FilterCounts:
    """Numbers of one filter."""

    documents: int = 0
    """Documents that it saw."""
    changed: int = 0
    """Documents that it kept with another text."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Documents by reason."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """The first dropped ones: ``file``, ``document`` (its number, from 1, among the file's documents), ``reason`` and
    the start of its ``text``."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> FilterCounts:
        """Return the counts of an entry of a manifest or journal."""
        return cls(entry["documents"], entry["changed"], dict(entry["dropped"]), list(entry["samples"]))

    def drop(self, reason: str, place: tuple[str, int] | None, text: str) -> None:
        """Count a dropped document."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        if len(self.samples) < SAMPLES:
            file, number = place or ("", 0)
            self.samples.append({"file": file, "document": number, "reason": reason, "text": text[:EXCERPT]})

    def add(self, later: FilterCounts) -> None:
        """Add the counts of documents that follow."""
        self.documents += later.documents
        self.changed += later.changed
        self.dropped = dict(Counter(self.dropped) + Counter(later.dropped))
        self.samples = [*self.samples, *later.samples][:SAMPLES]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        dropped = dict(sorted(self.dropped.items()))
        return {"documents": self.documents, "changed": self.changed, "dropped": dropped, "samples": self.samples}


def add_counts(before: Iterable[Mapping[str, Any]], later: Sequence[FilterCounts]) -> list[dict[str, Any]]:
    """Return the plain data ``before`` with the counts of documents that follow; ``before`` may be empty."""
    sums = [FilterCounts.of(entry) for entry in before] or [FilterCounts() for _ in later]
    for total, counts in zip(sums, later, strict=True):
        total.add(counts)
    return [total.as_dict() for total in sums]


def dropped_by(filters: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of documents that all filters of a manifest dropped."""
    return sum(sum(entry["dropped"].values()) for entry in filters)


def merged_filters(parts: Sequence[PreparedPart]) -> dict[str, Any]:
    """Return the entry ``filters`` of the manifest of merged parts; empty without filters.

    Samples of a file that several parts read get the numbers that they have in the whole file, by the entry
    ``documents_in_pieces`` of the parts.
    """
    if not parts[0].manifest.get("filters"):
        return {}
    before: Counter[str] = Counter()
    sums = [FilterCounts() for _ in parts[0].manifest["filters"]]
    for part in parts:
        for total, entry in zip(sums, part.manifest["filters"], strict=True):
            counts = FilterCounts.of(entry)
            counts.samples = [
                {**sample, "document": sample["document"] + before[sample["file"]]} for sample in counts.samples
            ]
            total.add(counts)
        before.update(part.manifest["documents_in_pieces"])
    facts = parts[0].manifest["filters"]
    return {
        "filters": [
            {"filter": entry["filter"], "by": entry["by"], **total.as_dict()}
            for entry, total in zip(facts, sums, strict=True)
        ]
    }


def require_kept(manifest: Mapping[str, Any], inputs: Sequence[str]) -> None:
    """Refuse filters that leave no document.

    Args:
        manifest: with the entry ``filters``, if there are filters.
        inputs: the setting, for the message.

    Raises:
        DataError: every document was dropped; the message has the numbers by reason.
    """
    filters = manifest.get("filters")
    if not filters or not filters[0]["documents"] or dropped_by(filters) < filters[0]["documents"]:
        return
    reasons = "; ".join(f"{entry['filter']}: {_reasons(entry['dropped'])}" for entry in filters if entry["dropped"])
    raise DataError(
        f"{', '.join(inputs)}: the filters dropped all {filters[0]['documents']:,} documents ({reasons}); change their "
        "options, or leave filters out"
    )


def filter_rows(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a row for each filter of a manifest: its name, and what it did."""
    return [(entry["filter"], _row(entry)) for entry in manifest.get("filters") or ()]


def sample_lines(manifest: Mapping[str, Any]) -> list[str]:
    """Return a line for each sample of a dropped document."""
    return [
        f"{entry['filter']}: {sample['reason']}: {sample['file']}, document {sample['document']:,}: "
        f"{' '.join(sample['text'].split())}"
        for entry in manifest.get("filters") or ()
        for sample in entry["samples"]
    ]


def _row(entry: Mapping[str, Any]) -> str:
    dropped = sum(entry["dropped"].values())
    reasons = f" ({_reasons(entry['dropped'])})" if dropped else ""
    changed = f", changed {entry['changed']:,}" if entry["changed"] else ""
    return f"dropped {dropped:,} of {entry['documents']:,}{reasons}{changed}"


def _reasons(dropped: Mapping[str, int]) -> str:
    ordered = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {reason}" for reason, count in ordered)
