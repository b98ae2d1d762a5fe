"""An executor, as somebody wrote it for API 1. Never edit this file: later cores must run it as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import ExecutorSpec, hookimpl

API = 1


@dataclass(frozen=True, kw_only=True)
class Crew:
    """A section of the site profile."""

    hands: int = 2


@hookimpl
def register_executors() -> Iterable[ExecutorSpec]:
    yield ExecutorSpec(
        name="frozen_crew", build="frozen_crew_parts:tasks", config=Crew, summary="threads, each with a process"
    )
