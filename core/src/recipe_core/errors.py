"""Errors that a user can mend. The command line prints them without a traceback and exits with their code."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of every command and of every rank, whatever started it.

    1 and 2 are those of ``diff`` and ``grep``; from 64 on they are the nearest of BSD's ``sysexits.h``, which no shell
    and no signal uses. 128 + N stands for a process that signal N ended at once, as in a shell.
    """

    FINISHED = 0
    """All that was asked for is done: a run has made its last step (or that of ``train.stop_after``)."""
    FINDING = 1
    """The command worked and found a difference or damage: a loss departs from ``train.golden``, ranks hold different
    copies, ``recipe verify``, ``compare``, ``ls`` or ``doctor`` names something that is wrong."""
    MISTAKE = 2
    """Settings, files or the command line are wrong; one message says which."""
    DIVERGED = 65
    """Loss, gradients or weights are no longer finite (``EX_DATAERR``); the same line would diverge again."""
    HUNG = 69
    """A rank was there and did not move within ``train.timeout`` (``EX_UNAVAILABLE``)."""
    BUG = 70
    """An error that is not the user's, with a traceback (``EX_SOFTWARE``)."""
    DISK_FULL = 74
    """No room on a disk (``EX_IOERR``); make room and give the same line again."""
    STOPPED = 75
    """Stopped by a signal, or another rank was lost (``EX_TEMPFAIL``): the same line goes on from there."""


class RecipeError(Exception):
    """Base of every error below.

    Its text is the whole message to the user: the path or setting, the value, what was expected, and the way out.
    """

    exit_code: ClassVar[int] = ExitCode.MISTAKE


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

    exit_code = ExitCode.DIVERGED


class LaunchError(RecipeError):
    """The processes of a run cannot be started as asked."""


class LostRankError(LaunchError):
    """Another rank is gone or does not answer: this rank only found out."""

    exit_code = ExitCode.STOPPED


class HungError(LaunchError):
    """A rank is there and does not move."""

    exit_code = ExitCode.HUNG


class DiskError(RecipeError):
    """A folder or file cannot be written."""


class DiskFullError(DiskError):
    """A disk has too little space left."""

    exit_code = ExitCode.DISK_FULL


class GoldenError(RecipeError):
    """A loss is not what ``train.golden`` says. Nobody's mistake: a finding, so that it has an exit code of its own."""

    exit_code = ExitCode.FINDING


class ReplicaError(RecipeError):
    """Ranks hold different values where they should hold copies. A finding, as a departure from a golden curve is."""

    exit_code = ExitCode.FINDING


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the name in ``known`` that is nearest to ``word``, or nothing."""
    import difflib

    near = difflib.get_close_matches(word, list(known), 1, cutoff=0.5)  # 'tyni' is half like 'tiny'
    return f"; did you mean {near[0]!r}?" if near else ""
