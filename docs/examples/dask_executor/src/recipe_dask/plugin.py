"""The executor ``dask``, and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import ExecutorSpec, hookimpl


@dataclass(frozen=True, kw_only=True)
class Dask:
    """Section ``dask`` of a site profile."""

    seconds: float = 10.0
    """Time limit for the connection to a scheduler."""


@hookimpl
def register_executors() -> Iterable[ExecutorSpec]:
    """Dask."""
    yield ExecutorSpec(
        name="dask",
        build="recipe_dask.executor:tasks",
        config=Dask,
        summary="workers of Dask: `--on dask` starts some here, `--on dask:tcp://HOST:PORT` takes a scheduler's",
    )
