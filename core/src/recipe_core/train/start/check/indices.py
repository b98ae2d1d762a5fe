"""Needs of the indices of a dataset's files: memory while they are built, disk, memory maps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from recipe_core.errors import RecipeError
from recipe_core.files import home
from recipe_core.hooks.facts import IndexFacts
from recipe_core.hooks.train import Train
from recipe_core.settings.facts import Facts
from recipe_core.train.start.check.machine import Memory, free_space, memory, scaled

FREE_SHARE = 0.9
"""Fraction of the main memory that indices may take; the rest is for the system, Python and the run itself."""
OWN_MAPS = 2000
"""Memory maps of a process that has loaded PyTorch and its libraries, plus a reserve."""


def index_problems(facts: Facts, train: Train) -> Iterator[str]:
    """Yield a problem for each limit that the indices of the run exceed."""
    indices = _index_facts(facts, train)
    if indices is None:
        return
    yield from indices.problems
    if indices.problems:
        return
    available, limit = memory("cpu"), map_limit()
    if available is not None and indices.memory > FREE_SHARE * available.total:
        yield (
            f"data: building the indices of this run takes {scaled(indices.memory, 'B')} of main memory, and "
            f"{available.of} has {scaled(available.total, 'B')}{_remedies(indices, 'build them on a larger machine')}"
        )
    if limit is not None and indices.maps + OWN_MAPS > limit:
        yield (
            f"data: {indices.files:,} files and their indices need {indices.maps:,} memory maps in each process, and "
            f"this system allows {limit:,} (vm.max_map_count); raise it (sysctl -w "
            f"vm.max_map_count={2 * (indices.maps + OWN_MAPS)}), or join files"
        )


def index_disk_problems(facts: Facts, train: Train) -> Iterator[str]:
    """Yield a problem if the files of the indices do not fit into the cache."""
    indices = _index_facts(facts, train)
    if indices is not None and indices.disk > (free := free_space(home())):
        yield (
            f"{home()}: the indices of the data take {scaled(indices.disk, 'B')}, and {scaled(free, 'B')} are free"
            f"{_remedies(indices, 'free some space, set RECIPE_CACHE to another folder')}"
        )


def index_rows(facts: Facts, train: Train, *, here: bool) -> list[tuple[str, str]]:
    """Return lines for ``recipe check``; ``here``: the run is for this machine."""
    indices = _index_facts(facts, train)
    if indices is None:
        return []
    available: Memory | None = memory("cpu") if here else None
    of = f" of the {scaled(available.total, 'B')} that {available.of} has" if available is not None else ""
    rows = []
    if indices.files > 1:
        rows.append(("data files", f"{indices.files:,}, in {indices.maps:,} memory maps of a process; none stays open"))
    if indices.memory >= 1e6 or indices.disk:
        disk = f"; {scaled(indices.disk, 'B')} in the cache{_free(home()) if here else ''}" if indices.disk else ""
        rows.append(("indices to build", f"up to {scaled(indices.memory, 'B')}{of}, once per machine{disk}"))
    return rows


def map_limit(setting: Path = Path("/proc/sys/vm/max_map_count")) -> int | None:
    """Return the memory maps that a process may have; None if the system does not say."""
    try:
        return int(setting.read_text())
    except (OSError, ValueError):
        return None


def _index_facts(facts: Facts, train: Train) -> IndexFacts | None:
    """None if the dataset has no index facts, or has problems that :func:`fact_problems` reports."""
    try:
        return facts.indices(train)
    except RecipeError:
        return None


def _free(folder: Path) -> str:
    return f" ({scaled(free_space(folder), 'B')} are free for {folder})"


def _remedies(indices: IndexFacts, otherwise: str) -> str:
    return f"; {indices.advice}, or {otherwise}" if indices.advice else f"; {otherwise}"
