"""The setting ``filters`` of a preparation from text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_core.data.filters.named import ELSEWHERE, NAMED
from recipe_core.data.text_settings import TextInput
from recipe_core.errors import did_you_mean

_TARGET = re.compile(r"[\w.]+:[\w.]+")


@dataclass(frozen=True)
class FilteredInput(TextInput):
    """Texts to prepare, and filters for them; a dataset that takes it applies a :class:`FilterChain`."""

    filters: tuple[str | dict[str, dict[str, Any]], ...] = field(default=(), metadata={"remote": True}, kw_only=True)
    """Filters that each document passes in this order, with their options:
    ``'[gopher_quality, {pii: {remove_ips: false}}]'``. The names of datatrove's filters, or ``module:NAME`` for a
    function or class of your own. Documents without text are left out."""

    @property
    def numbers_documents(self) -> bool:
        """True if there are filters, whose samples name documents by their number."""
        return bool(self.filters)

    def problems(self) -> list[str]:
        """Return the problems of the settings, those of the filters last."""
        return [*super().problems(), *_problems(self.filters)]


def steps(filters: tuple[Any, ...]) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the options of each filter."""
    return [(step, {}) if isinstance(step, str) else next(iter(step.items())) for step in filters]


def _problems(filters: tuple[Any, ...]) -> Iterator[str]:
    for number, step in enumerate(filters):
        if isinstance(step, Mapping) and len(step) != 1:
            yield f"filters: expected one name for each filter, as in {{pii: {{remove_ips: false}}}}, got {step!r:.80}"
            continue
        ((name, _),) = steps(filters[number : number + 1])
        if name.startswith(("[", "{")):
            yield (
                f"filters: cannot be read as YAML: {name:.80}; expected a list such as [pii, {{c4_quality: "
                "{min_words_per_line: 5}}], with texts that hold other signs in single quotes"
            )
        elif name in ELSEWHERE:
            yield f"filters: {name}: {ELSEWHERE[name]}"
        elif name not in NAMED and not _TARGET.fullmatch(name):
            near, known = did_you_mean(name, NAMED), ", ".join(NAMED)
            yield f"filters: no filter is named {name!r}{near} (there are: {known}, and module:NAME)"
