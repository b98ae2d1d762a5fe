"""The filters of a preparation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from recipe_core.data.filters.build import Step, build
from recipe_core.data.filters.counts import FilterCounts
from recipe_core.data.filters.settings import FilteredInput, steps
from recipe_core.data.text_settings import Record
from recipe_core.errors import DataError, RecipeError
from recipe_core.hooks.target import described

NOTHING_LEFT = "nothing_left"
"""Reason of a document whose text a filter removed."""


@dataclass(frozen=True)
class FilterChain:
    """The filters of a preparation, in order. It can be sent to a worker, which builds them when it first applies them.

    What it does to a document depends on nothing but its text.
    """

    filters: str
    """JSON of the names and options."""

    @classmethod
    def of(cls, settings: FilteredInput) -> FilterChain:
        """Build the filters of the settings.

        Raises:
            ConfigError: an option is wrong, or a package, a model or a list is missing.
        """
        chain = cls(json.dumps(steps(settings.filters), ensure_ascii=False))
        _built(chain.filters)
        return chain

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def names(self) -> list[str]:
        """The names of the filters."""
        return [name for name, _ in json.loads(self.filters)]

    @property
    def identity(self) -> dict[str, str]:
        """Versions of packages and digests of files that decide the result. Two preparations with the same are alike.

        The keys name the setting, such as ``filters[0] datatrove``.
        """
        by = [step.by for step in _built(self.filters)]
        return {f"filters[{number}] {name}": value for number, facts in enumerate(by) for name, value in facts.items()}

    def new_counts(self) -> list[FilterCounts]:
        """Return zeros for each filter."""
        return [FilterCounts() for _ in self.names]

    def apply(self, record: Record, text: str, counts: Sequence[FilterCounts]) -> str | None:
        """Return the text that all filters keep, as they changed it; None if one drops the document.

        Args:
            record: the document, for messages and samples.
            text: its text.
            counts: updated; from :meth:`new_counts`.

        Raises:
            DataError: a filter failed.
        """
        for step, own in zip(_built(self.filters), counts, strict=True):
            own.documents += 1
            try:
                kept, reason = step.apply(text)
            except RecipeError:
                raise
            except Exception as error:
                raise DataError(
                    f"{record}: the filter {step.name} failed ({described(error)}); change its options, or leave it out"
                ) from error
            if kept is not None and (not kept or kept.isspace()) and kept != text:
                kept, reason = None, NOTHING_LEFT
            if kept is None:
                own.drop(reason, record.document, text)
                return None
            own.changed += kept != text
            text = kept
        return text

    def entries(self, counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the entry ``filters`` of a manifest, by counts as plain data; empty without filters."""
        if not self:
            return {}
        built = _built(self.filters)
        counts = counts or [zero.as_dict() for zero in self.new_counts()]
        return {
            "filters": [
                {"filter": step.name, "by": step.by, **entry} for step, entry in zip(built, counts, strict=True)
            ]
        }


@lru_cache(maxsize=4)
def _built(filters: str) -> list[Step]:
    # once per process: a model may take seconds and a gigabyte
    return [build(name, options) for name, options in json.loads(filters)]
