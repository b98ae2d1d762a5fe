"""Settings built without pydantic: only those that pydantic takes too, and the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.hooks.train import Train
from recipe_core.settings import direct, fill
from recipe_core.settings.text import kinds


@dataclass(frozen=True)
class Inner:
    number: int = 1


@dataclass(frozen=True)
class Several:
    whole: int = 1
    number: float = 2  # type: ignore[assignment]  # a default that is not what it is declared to be
    flag: bool = False
    text: str = ""
    maybe: int | None = None
    either: int | str = 1
    choice: Literal["a", "b", 1, True] = "a"
    many: tuple[float, ...] = ()
    two: tuple[int, str] = (1, "x")
    names: list[str] | None = None
    path: Path = Path()
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        if self.whole == 13:
            raise ValueError("whole: expected another number")
        if self.whole == 14:
            raise KeyError("whole")


@dataclass(frozen=True)
class Plain:
    whole: int = 1
    number: float = 2  # type: ignore[assignment]
    flag: bool = False
    text: str = ""
    maybe: int | None = None
    choice: Literal["a", "b", 1, True] = "a"
    many: tuple[float, ...] = ()
    two: tuple[int, str] = (1, "x")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "b", "x", "13", ""])
VALUES = SCALARS | st.sampled_from([0, 1, 13, 14, 1 << 53, -1, 0.0, 1.0]) | st.lists(SCALARS, max_size=3)


@pytest.mark.parametrize("kind", [Plain, Several, Train])
@settings(deadline=None)  # the first example imports pydantic
@given(data=st.data())
def test_it_takes_nothing_that_pydantic_does_not(kind: Any, data: st.DataObject) -> None:
    names = st.sampled_from(sorted(kinds(kind)))
    values = data.draw(st.dictionaries(names, VALUES, max_size=3))
    found = direct.build(kind, values, fill.plain)
    if found is not None:
        assert repr(found) == repr(fill._judged(kind, values, "section", []))


@pytest.mark.parametrize(
    "values", [{}, {"whole": 3, "number": 5, "maybe": 4, "choice": True, "many": [1, 2.5], "two": [3, "y"]}]
)
def test_what_is_plainly_right_is_taken(values: dict[str, Any]) -> None:
    found = direct.build(Plain, values, fill.plain)
    assert found is not None
    assert repr(found) == repr(fill._judged(Plain, values, "section", []))
    assert type(found.number) is float


@pytest.mark.parametrize("values", [{"whole": 13}, {"whole": 14}, {"nothing": 1}, {"flag": 1}, {"two": [1]}, []])
def test_the_rest_is_left_to_pydantic(values: Any) -> None:
    assert direct.build(Several if "whole" in values else Plain, values, fill.plain) is None
