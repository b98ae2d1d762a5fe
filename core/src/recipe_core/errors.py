"""Errors that a user can mend. The command line prints them without a traceback and exits with their code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class RecipeError(Exception):
    """Base of every error below.

    Its text is the whole message to the user: the path or setting, the value, what was expected, and the way out.
    """

    exit_code: ClassVar[int] = 2


class ConfigError(RecipeError):
    """A setting is unknown, has the wrong type, or has a value that cannot work."""

    @classmethod
    def of(cls, problems: Iterable[str]) -> ConfigError:
        """Make one error of all ``problems``: a single one as it is, several as a list."""
        lines = list(problems)
        if len(lines) == 1:
            return cls(lines[0])
        return cls("\n".join([f"{len(lines)} problems:", *(f"  - {line}" for line in lines)]))


class PluginError(RecipeError):
    """A plugin does not load, or two plugins claim one name."""


class DataError(RecipeError):
    """A data file is missing, damaged, or holds what the run cannot use."""


class CheckpointError(RecipeError):
    """A checkpoint is missing, damaged, or does not fit the run."""


class DivergedError(RecipeError):
    """Loss or gradients are no longer finite."""


class LaunchError(RecipeError):
    """The processes of a run cannot be started as asked."""


class DiskError(RecipeError):
    """A folder cannot be written, or has too little space left."""


class GoldenError(RecipeError):
    """A loss is not what ``train.golden`` says. Nobody's mistake: a finding, so that it has an exit code of its own."""

    exit_code = 1


class ReplicaError(RecipeError):
    """Ranks hold different values where they should hold copies. A finding, as a departure from a golden curve is."""

    exit_code = 1


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the name in ``known`` that is nearest to ``word``, or nothing."""
    import difflib

    near = difflib.get_close_matches(word, list(known), 1, cutoff=0.5)  # 'tyni' is half like 'tiny'
    return f"; did you mean {near[0]!r}?" if near else ""
