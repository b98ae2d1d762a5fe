"""Errors that a user can fix. The command line prints them without a traceback and exits with their code."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of all commands and of all ranks, under any launcher.

    1 and 2 are those of ``diff`` and ``grep``; from 64 on, they are the nearest of BSD's ``sysexits.h``, which no shell
    and no signal uses. 128 + N is a process that was ended by signal N, as in a shell.
    """

    FINISHED = 0
    """Success: a run has made its last step (or that of ``train.stop_after``)."""
    FINDING = 1
    """The command worked and found a difference or damage: a loss differs from ``train.golden``, copies of ranks
    differ, or ``recipe verify``, ``compare``, ``ls`` or ``doctor`` reports a problem."""
    MISTAKE = 2
    """Settings, files or the command line are wrong; one message names all mistakes."""
    DIVERGED = 65
    """Loss, gradients or weights are no longer finite (``EX_DATAERR``); the same command would diverge again."""
    HUNG = 69
    """A rank was alive and did not proceed within ``train.timeout`` (``EX_UNAVAILABLE``)."""
    BUG = 70
    """An internal error, with a traceback (``EX_SOFTWARE``)."""
    DISK_FULL = 74
    """No room on a disk (``EX_IOERR``); make room and run the same command again."""
    STOPPED = 75
    """Stopped by a signal, or another rank was lost (``EX_TEMPFAIL``): the same command continues the run."""


class RecipeError(Exception):
    """Base of every error below.

    Its text is the whole message to the user: the path or setting, the value, what was expected, and what to do.
    """

    exit_code: ClassVar[int] = ExitCode.MISTAKE


class ConfigError(RecipeError):
    """A setting is unknown, has the wrong type, or has a value that cannot work."""

    @classmethod
    def of(cls, problems: Iterable[str]) -> ConfigError:
        """Return one error for all ``problems``: a single one as it is, several as a list."""
        lines = list(problems)
        if len(lines) == 1:
            return cls(lines[0])
        return cls("\n".join([f"{len(lines)} problems:", *(f"  - {line}" for line in lines)]))


class PluginError(RecipeError):
    """A plugin does not load, does not do what its hook promises, or shares a name with another plugin."""


class DataError(RecipeError):
    """A data file is missing, damaged, or holds what the run cannot use."""


class CheckpointError(RecipeError):
    """A checkpoint is missing, damaged, or does not fit the run."""


class DivergedError(RecipeError):
    """Loss or gradients are no longer finite."""

    exit_code = ExitCode.DIVERGED


class LaunchError(RecipeError):
    """The processes of a run cannot be started."""


class LostRankError(LaunchError):
    """Another rank has ended or does not answer; this rank only noticed."""

    exit_code = ExitCode.STOPPED


class HungError(LaunchError):
    """A rank is alive and does not proceed."""

    exit_code = ExitCode.HUNG


class DiskError(RecipeError):
    """A folder or file cannot be written."""


class DiskFullError(DiskError):
    """A disk has too little space left."""

    exit_code = ExitCode.DISK_FULL


class GoldenError(RecipeError):
    """A loss differs from ``train.golden``: a finding, not a mistake, so that it has its own exit code."""

    exit_code = ExitCode.FINDING


class ReplicaError(RecipeError):
    """Ranks hold different values where they should hold copies: a finding, like a difference from a golden curve."""

    exit_code = ExitCode.FINDING


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` with the name in ``known`` that is nearest to ``word``, or an empty string."""
    import difflib

    near = difflib.get_close_matches(word, list(known), 1, cutoff=0.5)  # 'tyni' is half like 'tiny'
    return f"; did you mean {near[0]!r}?" if near else ""
