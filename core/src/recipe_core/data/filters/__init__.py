"""Quality filters of ``recipe prepare``: which documents it drops or changes, and how many.

``settings.py``: the setting ``filters``; read it first. ``named.py``: the filters that have a name here, all of them
datatrove's. ``chain.py``: the filters of a preparation, applied to documents. ``build.py``, ``options.py``: from names
and options to functions. ``files.py``: filters that read a model or a list. ``counts.py``: numbers and samples of
dropped documents, for manifests, merges and summaries. No torch, and datatrove only when a filter is built.
"""

from __future__ import annotations

from recipe_core.data.filters.chain import FilterChain
from recipe_core.data.filters.counts import FilterCounts, add_counts, dropped_by, merged_filters, require_kept
from recipe_core.data.filters.settings import FilteredInput

__all__ = [
    "FilterChain", "FilterCounts", "FilteredInput", "add_counts", "dropped_by", "merged_filters", "require_kept",
]  # fmt: skip
