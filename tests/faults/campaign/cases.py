"""Families of faults: each draws cases from a seed, does one to the product, and judges what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Family:
    """One kind of fault."""

    name: str
    share: float
    """Of the campaign's time, relative to the other families'."""
    draw: Callable[[random.Random], Any]
    """A case, whose ``str`` describes it; it depends on nothing but the generator."""
    attempt: Callable[[Any, Path, Path], str]
    """Do it. Arguments: the case, the folder with what :attr:`prepare` made, an empty folder for this case, which is
    kept if there is a violation. Returns the violation; empty for none."""
    prepare: Callable[[Path], None] = lambda base: None
    """Make once what all cases read."""
    unavailable: Callable[[], str] = lambda: ""
    """Why the family cannot be tried on this machine; empty if it can."""


@dataclass(frozen=True)
class Tried:
    """The outcome of one case."""

    family: str
    number: int
    what: str
    violation: str
    seconds: float


def case(family: Family, seed: int, number: int) -> Any:
    """Case ``number`` (from 0) of the family: the same for the same seed, whatever was drawn before."""
    return family.draw(random.Random(f"{seed}/{family.name}/{number}"))
