"""Targets: the ``package.module:function`` strings in contributions, which only a run imports."""

from __future__ import annotations

import contextlib
import pkgutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recipe_core.errors import PluginError, RecipeError
from recipe_core.files import path_error


def called(*arguments: str) -> dict[str, Any]:
    """Return the metadata of a field that holds a target: the ``arguments`` that the function or class is called with.

    :mod:`recipe_core.hooks.resolve` checks the code against them. The value of such a field is one target, or a mapping
    whose values are targets; empty: none.
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


@contextlib.contextmanager
def as_plugin_error(code: str, *messages: type[Exception]) -> Iterator[None]:
    """Raise errors of a plugin's ``code`` as PluginError, which names it.

    Errors that are messages to the user pass: RecipeError, and the classes ``messages``.

    Raises:
        PluginError: any other error.
        ConfigError: an OSError about a path that cannot be used.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (RecipeError, *messages)):
            raise
        if isinstance(error, OSError) and (known := path_error(error)) is not None:
            raise known from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise PluginError(
            f"{code} raised {type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno}); fix the "
            "plugin (--debug shows the traceback)"
        ) from error
