"""All ranks fail alike, and a result that cannot be pickled stays on its rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipe_core.engine.agreement import on_each_rank, on_rank_0, together
from recipe_core.errors import DataError, DiskError, RecipeError

HERE = Path("out")


class Two:
    """Rank ``rank`` of two; the other one brings ``other`` to each meeting."""

    world_size = 2

    def __init__(self, rank: int, other: tuple[Any, Any]) -> None:
        self.rank, self.other = rank, other

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other] if self.rank == 0 else [self.other, value]


def test_results_come_in_rank_order() -> None:
    assert together(Two(1, ("first", None)), lambda: "second", HERE) == ["first", "second"]
    assert on_rank_0(Two(1, ("first", None)), lambda: "second", HERE) == "first"
    assert callable(on_each_rank(Two(1, (None, None)), lambda: lambda: 1, HERE))


def test_rank_0_acts_alone() -> None:
    acted: list[int] = []
    on_rank_0(Two(1, (None, None)), lambda: acted.append(1), HERE)
    assert acted == []
    on_rank_0(Two(0, (None, None)), lambda: acted.append(0), HERE)
    assert acted == [0]


def test_the_lowest_rank_that_failed_speaks_for_all() -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"^rank 1: odd$"):
        together(Two(0, (None, (DataError, "odd"))), lambda: None, HERE)
    with pytest.raises(DataError, match=r"^odd$"):
        together(Two(1, (None, (DataError, "odd"))), full, HERE)
    with pytest.raises(DiskError, match=r"^out: No space left on device$"):
        together(Two(0, (None, (DataError, "odd"))), full, HERE)


def test_a_bug_keeps_its_traceback_where_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        together(Two(1, (None, None)), lambda: 1 // 0, HERE)
    with pytest.raises(RecipeError, match=r"^rank 1: ZeroDivisionError: oops$"):
        together(Two(0, (None, (RecipeError, "ZeroDivisionError: oops"))), lambda: None, HERE)
