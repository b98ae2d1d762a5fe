"""A layout and a checkpoint format, as somebody wrote them for API 1. Never edit this file: later cores must run it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import CheckpointFormat, Division, Layout, LayoutSettings, hookimpl


@dataclass(frozen=True, kw_only=True)
class Plain(LayoutSettings):
    """One process that does everything."""

    remark: str = ""

    def axes(self, world_size: int) -> dict[str, int]:
        if world_size > 1:
            raise ValueError(f"frozen_plain runs in one process, and this run has {world_size}")
        return {"dp": 1}

    def division(self, world_size: int) -> Division:
        return Division()


@dataclass(frozen=True, kw_only=True)
class Boxed:
    """One file."""

    stem: str = "box"


@hookimpl
def register_layouts() -> Iterable[Layout]:
    yield Layout(
        name="frozen_plain",
        build="frozen_place_parts:build",
        config=Plain,
        divides=True,
        summary="one process, filled shard by shard",
    )


@hookimpl
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    yield CheckpointFormat(
        name="frozen_box",
        build="frozen_place_parts:Box",
        config=Boxed,
        patterns=("*.frozen_box",),
        summary="one file, written by rank 0",
    )
