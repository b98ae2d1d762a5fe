"""Actions that succeed on all ranks or fail on all ranks, with the same error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar, cast

from recipe_core.errors import RecipeError
from recipe_core.files import disk_error

T = TypeVar("T")


class Ranks(Protocol):
    """The ranks of a run, as far as they need to agree: an engine, or its side group."""

    rank: int
    world_size: int

    def gather(self, value: T) -> list[T]:
        """Each rank's ``value``, in rank order."""
        ...


def together(ranks: Ranks, action: Callable[[], T], where: Path) -> list[T]:
    """Run ``action`` on every rank and return all results (small, picklable) in rank order.

    No rank leaves before all have finished: one that went on alone would wait in its next collective for ever.

    Args:
        ranks: the ranks; all of them call this.
        action: runs on each rank.
        where: the path in the message of a disk error that names no file.

    Raises:
        RecipeError: the action failed on a rank. All ranks raise the error of the lowest rank that failed.
    """
    value: T | None = None
    failure: tuple[type[RecipeError], str] | None = None
    unexpected: Exception | None = None
    try:
        value = action()
    except RecipeError as error:
        failure = (type(error), str(error))
    except OSError as error:
        full = disk_error(error, f"{error.filename or where}: {error.strerror or error}")
        failure = (type(full), str(full))
    except Exception as error:  # a bug: this rank shows its traceback
        unexpected, failure = error, (RecipeError, f"{type(error).__name__}: {error}")
    outcomes = ranks.gather((value, failure))
    if unexpected is not None:
        raise unexpected
    failures = [(rank, failure) for rank, (_, failure) in enumerate(outcomes) if failure]
    if failures:
        rank, (kind, text) = failures[0]
        raise kind(text if rank == 0 else f"rank {rank}: {text}")
    return [cast("T", value) for value, _ in outcomes]


def on_rank_0(ranks: Ranks, action: Callable[[], T], where: Path) -> T:
    """Run ``action`` on rank 0 alone and return its result on all ranks; if it fails, all raise the same error."""
    return cast("T", together(ranks, lambda: action() if ranks.rank == 0 else None, where)[0])


def on_each_rank(ranks: Ranks, action: Callable[[], T], where: Path) -> T:
    """Run ``action`` on every rank and return this rank's own result, which need not be picklable."""
    results: list[T] = []
    together(ranks, lambda: results.append(action()), where)
    return results[0]
