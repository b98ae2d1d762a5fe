"""The difference to the last commit that landed."""

from __future__ import annotations

import os
import subprocess
from functools import cache

from checks.workspace import ROOT


def _git(*words: str) -> list[str]:
    """The lines that git prints; none where it fails, as outside a repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


@cache
def base() -> str | None:
    """Return the last commit that landed, as far as this checkout knows it; None outside a repository.

    ``RECIPE_BASE`` names it. Else it is main, of this repository or of the one that it was cloned from. On that commit
    itself (CI checks it after the fact) it is the newest commit that is a day older.
    """
    if named := os.environ.get("RECIPE_BASE"):
        return named
    head = _git("rev-parse", "HEAD")
    for branch in ("main", "origin/main"):
        found = _git("merge-base", branch, "HEAD")
        if found and found != head:
            return found[0]
    return _day_before()


@cache
def changed() -> set[str] | None:
    """Return the paths that differ from :func:`base`, untracked ones too; None where that is unknown."""
    return _differing(base())


@cache
def recent() -> set[str] | None:
    """Return :func:`changed`, and what the commits of a day before the last one changed; None where that is unknown.

    So before a landing as much is recent as after it, when this commit is main.
    """
    since = changed()
    return since if since is None else since | (_differing(_day_before()) or set())


def _differing(commit: str | None) -> set[str] | None:
    if commit is None:
        return None
    return {*_git("diff", "--name-only", commit), *_git("ls-files", "--others", "--exclude-standard")}


def _day_before() -> str | None:
    """The newest commit that is a day older than the last one, if there is one."""
    when = _git("show", "--no-patch", "--format=%ct", "HEAD")
    earlier = _git("rev-list", "-1", f"--before={int(when[0]) - 24 * 3600}", "HEAD") if when else []
    return earlier[0] if earlier else None
