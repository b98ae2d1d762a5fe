"""The executor ``ray``."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import ExecutorSpec, hookimpl


@hookimpl
def register_executors() -> Iterable[ExecutorSpec]:
    """Ray Core."""
    yield ExecutorSpec(
        name="ray",
        build="recipe_ray.executor:tasks",
        summary="tasks of Ray: `--on ray` starts a Ray on this machine, `--on ray:ADDRESS` takes a running cluster",
    )
