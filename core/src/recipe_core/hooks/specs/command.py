"""Commands that plugins add to ``recipe``. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

from recipe_core.hooks.target import called

CORE_COMMANDS = (
    "ls", "show", "check", "run", "precompile", "submit", "status", "logs", "stop", "compare", "report", "prepare",
    "inspect", "verify", "generate", "eval", "convert", "merge", "doctor", "plugin", "completion",
)  # fmt: skip
"""The commands of the core. A plugin's command of the same name is called by ``plugin/name``."""


@dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """``recipe NAME ...``, a command of click; its arguments and options are its settings.

    ``--debug`` is added to it. An ``int`` that it returns, ``ctx.exit(code)`` and ``sys.exit(code)`` give its exit
    code. A RecipeError and click's own errors are messages to the user, see :class:`recipe_core.RecipeError`; any other
    error is reported as a mistake of the plugin.
    """

    name: str
    """The word after ``recipe``."""
    build: str = field(metadata=called())
    """``package.module:command``: a click command or group, whose module is imported only when it is called, asked
    for ``--help``, or completed."""
    summary: str = ""
    """One line for ``recipe --help`` and ``recipe ls``."""
