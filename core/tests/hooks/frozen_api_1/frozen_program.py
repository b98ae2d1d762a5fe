"""A launcher and a command, as somebody wrote them for API 1. Never edit this file: later cores must run it as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import CommandSpec, Launcher, hookimpl

API = 1


@dataclass(frozen=True, kw_only=True)
class Tray:
    """A section of the site profile."""

    queue: str = "short"


@hookimpl
def register_launchers() -> Iterable[Launcher]:
    yield Launcher(
        name="frozen_tray",
        build="frozen_program_parts:scripts",
        submit="frozen_program_parts:submit",
        state="frozen_program_parts:state",
        stop="frozen_program_parts:stop",
        config=Tray,
        summary="a folder of scripts, which nobody starts",
    )


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    yield CommandSpec(
        name="frozen-steps", build="frozen_program_parts:steps", summary="Print the steps of a recipe."
    )
    yield CommandSpec(name="frozen-many", build="frozen_program_parts:many", summary="Has commands of its own.")
