"""The folders ``step-N`` of a run, as one process sees them: names, leftovers, those of others, those set aside."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from recipe_core.checkpoint.manifest import STEP, step_of
from recipe_core.checkpoint.saving.retention import NOT_OURS
from recipe_core.errors import CheckpointError
from recipe_core.files import aside, remove

_LEFTOVER = re.compile(r"\.step-\d+\.[0-9a-f]{12}\.(part|old)")
"""Names from :func:`recipe_core.files.aside`, left behind by a save that was killed."""


def checkpoint_names(folder: Path) -> list[str]:
    """Return the names of the checkpoints, intact or not, the highest step first."""
    if not folder.is_dir():
        return []
    names = {int(m[1]): p.name for p in folder.iterdir() if (m := STEP.fullmatch(p.name)) and p.is_dir()}
    return [names[step] for step in sorted(names, reverse=True)]


def tidy(folder: Path) -> None:
    """Remove the leftovers of a killed save, and restore the checkpoint that it was about to replace."""
    leftovers = [path for path in folder.glob(".step-*") if _LEFTOVER.fullmatch(path.name)]
    for part in (path for path in leftovers if path.suffix == ".part"):
        remove(part)
    for old in (path for path in leftovers if path.suffix == ".old"):
        final = folder / old.name[1:].split(".")[0]
        if final.exists():
            remove(old)
        else:
            old.replace(final)


def rename_foreign(path: Path, warn: Callable[[str], None]) -> None:
    """Give a folder that is not ours another name, and say so with ``warn``."""
    kept = aside(path, "kept")
    kept = kept.with_name(kept.name[1:])  # visible to the user
    path.replace(kept)
    warn(f"{path}: is called {kept.name} from now on: {NOT_OURS}")


def set_aside_later(folder: Path, step: int, warn: Callable[[str], None]) -> bool:
    """Rename the checkpoints of later steps; return False if that was done before.

    Raises:
        CheckpointError: there is no checkpoint of this step.
    """
    names, mark = checkpoint_names(folder), f"left-for-step-{step}"
    if any(folder.glob(f"*.{mark}")):
        warn(
            f"the run has gone back to step {step:,} before, and goes on from where it is; to go back once more, "
            f"remove {folder}/*.{mark}"
        )
        return False
    if f"step-{step}" not in names:
        there = f"there are {', '.join(reversed(names))}" if names else "there is none"
        raise CheckpointError(f"train.resume: {folder} has no checkpoint step-{step}; {there}")
    later = [name for name in names if step_of(name) > step]
    for name in later:
        (folder / name).replace(folder / f"{name}.{mark}")
    if not later:  # mark it, so that the same command continues once there are later ones
        (folder / f"nothing.{mark}").touch()
    else:
        named = ", ".join(f"{name}.{mark}" for name in later)
        warn(f"back to step {step:,}: what came later is called {named} and can be removed")
    return True
