"""Needs of the indices of a dataset's files: memory while they are built, disk, memory maps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from recipe_core.cli.check.machine import Memory, free_space, memory, scaled
from recipe_core.errors import RecipeError
from recipe_core.files import home
from recipe_core.hooks.facts import IndexFacts
from recipe_core.hooks.train import Train
from recipe_core.settings.facts import Facts

FREE_SHARE = 0.9
"""Of the main memory, what indices may take: the system, Python and the run itself have the rest."""
OWN_MAPS = 2000
"""Memory maps of a process that has loaded PyTorch and its libraries, and some more."""


def index_problems(facts: Facts, train: Train) -> Iterator[str]:
    """A problem for each limit that the indices of the run pass, on this machine or in themselves."""
    needed = _known(facts, train)
    if needed is None:
        return
    yield from needed.problems
    if needed.problems:
        return
    there, limit = memory("cpu"), map_limit()
    if there is not None and needed.memory > FREE_SHARE * there.total:
        yield (
            f"data: building the indices of this run takes {scaled(needed.memory, 'B')} of main memory, and "
            f"{there.of} has {scaled(there.total, 'B')}{_way_out(needed, 'build them on a larger machine')}"
        )
    if limit is not None and needed.maps + OWN_MAPS > limit:
        yield (
            f"data: {needed.files:,} files and their indices need {needed.maps:,} memory maps in each process, and "
            f"this system allows {limit:,} (vm.max_map_count); raise it (sysctl -w "
            f"vm.max_map_count={2 * (needed.maps + OWN_MAPS)}), or join files"
        )


def index_disk_problems(facts: Facts, train: Train) -> Iterator[str]:
    """A problem if the files of the indices do not fit into the cache."""
    needed = _known(facts, train)
    if needed is not None and needed.disk > (free := free_space(home())):
        yield (
            f"{home()}: the indices of the data take {scaled(needed.disk, 'B')}, and {scaled(free, 'B')} are free"
            f"{_way_out(needed, 'free some space, set RECIPE_CACHE to another folder')}"
        )


def index_rows(facts: Facts, train: Train, *, here: bool) -> list[tuple[str, str]]:
    """Lines for ``recipe check``; ``here``: the run is for this machine."""
    needed = _known(facts, train)
    if needed is None:
        return []
    there: Memory | None = memory("cpu") if here else None
    of = f" of the {scaled(there.total, 'B')} that {there.of} has" if there is not None else ""
    rows = []
    if needed.files > 1:
        rows.append(("data files", f"{needed.files:,}, in {needed.maps:,} memory maps of a process; none stays open"))
    if needed.memory >= 1e6 or needed.disk:
        disk = f"; {scaled(needed.disk, 'B')} in the cache{_free(home()) if here else ''}" if needed.disk else ""
        rows.append(("indices to build", f"up to {scaled(needed.memory, 'B')}{of}, once per machine{disk}"))
    return rows


def map_limit(setting: Path = Path("/proc/sys/vm/max_map_count")) -> int | None:
    """Memory maps that a process may have; None where the system does not say."""
    try:
        return int(setting.read_text())
    except (OSError, ValueError):
        return None


def _known(facts: Facts, train: Train) -> IndexFacts | None:
    """None where the dataset says nothing, or has problems that :func:`fact_problems` tells."""
    try:
        return facts.indices(train)
    except RecipeError:
        return None


def _free(folder: Path) -> str:
    return f" ({scaled(free_space(folder), 'B')} are free for {folder})"


def _way_out(needed: IndexFacts, otherwise: str) -> str:
    return f"; {needed.advice}, or {otherwise}" if needed.advice else f"; {otherwise}"
