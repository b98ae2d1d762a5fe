"""Targets: the ``package.module:function`` strings in contributions, which only a run imports."""

from __future__ import annotations

import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from recipe_core.errors import PluginError, RecipeError
from recipe_core.files import is_full, path_error

_LONGEST = 500
"""Characters of an error's message that are shown; some of PyTorch list all signatures of a function."""


def called(*arguments: str) -> dict[str, Any]:
    """Return the metadata of a field that holds a target: the ``arguments`` that the function or class is called with.

    :mod:`recipe_core.hooks.static.resolve` checks the code against them. The value of such a field is one target, or a
    mapping whose values are targets; empty: none.
    """
    return {"arguments": arguments}


def load(target: str, owner: str) -> Callable[..., Any]:
    """Import and return ``package.module:function``; ``owner`` names the contribution in messages.

    Raises:
        PluginError: there is no such module or function, or a package that it needs is missing.
    """
    try:
        function: Callable[..., Any] = pkgutil.resolve_name(target)
    except (Exception, SystemExit) as error:  # importing it runs any code
        raise PluginError(
            f"{owner}: {target!r} cannot be imported ({type(error).__name__}: {error}); fix the plugin, or install "
            "what it needs"
        ) from error
    return function


def call(target: str, owner: str, *arguments: Any) -> Any:
    """Import ``package.module:function`` and call it.

    Raises:
        PluginError: it cannot be imported, or it raises an error that is not a message to the user.
    """
    function = load(target, owner)
    with as_plugin_error(f"{owner}: {target!r}"):
        return function(*arguments)


def call_list(target: str, owner: str, *arguments: Any) -> list[Any]:
    """Import ``package.module:function``, call it, and return the iterable that it returns as a list.

    Raises:
        PluginError: see :func:`call`; also for an error that a generator raises on the way, or no iterable.
    """
    with as_plugin_error(f"{owner}: {target!r}"):
        answer = call(target, owner, *arguments)
        if isinstance(answer, str):
            raise PluginError(f"{owner}: {target!r} returned {answer!r}; expected a list of messages")
        return list(answer)


class as_plugin_error:  # read as a function, like contextlib.suppress
    """Raise errors of a plugin's ``code`` as PluginError, which names it, with the file and line of the plugin.

    Errors that are messages to the user pass: RecipeError, the classes ``messages``, a full disk, and those for which
    ``passes`` returns True. The object can be used again and costs a fraction of a microsecond: a loop makes it once.

    Raises:
        PluginError: any other error, and SystemExit, which would end the command without a word.
        ConfigError: an OSError about a path that cannot be used.
    """

    def __init__(
        self, code: str, *messages: type[Exception], passes: Callable[[BaseException], bool] = lambda error: False
    ) -> None:
        self._code, self._passes = code, passes
        self._messages: tuple[type[Exception], ...] = (RecipeError, *messages)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, (Exception, SystemExit)) or isinstance(error, self._messages) or self._passes(error):
            return
        if isinstance(error, OSError):
            if is_full(error):
                return
            if (known := path_error(error)) is not None:
                raise known from error
        raise PluginError(
            f"{self._code} raised {described(error)}; fix the plugin (--debug shows the traceback)"
        ) from error


def described(error: BaseException) -> str:
    """Return class and message of an error on one line, with the file and line of the plugin's code that caused it."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    frames = [
        (str(frame.f_globals.get("__name__", "")).partition(".")[0], frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    callers = ("recipe_core", "torch", "click", *sys.stdlib_module_names)
    plugin = next((package for package, _, _ in frames if package not in callers), None)
    places = [f" ({Path(file).name}, line {line})" for package, file, line in frames if package == plugin]
    return f"{text[:_LONGEST]}{'...' * (len(text) > _LONGEST)}{places[-1] if places else ''}"
