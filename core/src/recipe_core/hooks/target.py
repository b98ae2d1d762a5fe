"""Targets: places of code, ``package.module:function``, that contributions name and only a run imports."""

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
    """Metadata of a field that names code: ``arguments`` that the function, or the class, is called with.

    :mod:`recipe_core.hooks.resolve` holds the code against them. The value of such a field is one target, or a mapping
    whose values are targets; empty: there is none.
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
            f"{owner}: {target!r} cannot be imported ({type(error).__name__}: {error}); mend the plugin, or install "
            "what it needs"
        ) from error
    return function


def call(target: str, owner: str, *arguments: Any) -> Any:
    """Import ``package.module:function`` and call it.

    Raises:
        PluginError: it cannot be imported, or it raises an error that is no message to the user.
    """
    function = load(target, owner)
    with blamed(f"{owner}: {target!r}"):
        return function(*arguments)


def listed(target: str, owner: str, *arguments: Any) -> list[Any]:
    """:func:`call` a function that returns an iterable, such as a generator, and go through all of it.

    Raises:
        PluginError: see :func:`call`; or it returns no iterable.
    """
    with blamed(f"{owner}: {target!r}"):
        answer = call(target, owner, *arguments)
        if isinstance(answer, str):
            raise PluginError(f"{owner}: {target!r} returned {answer!r}; expected a list of messages")
        return list(answer)


@contextlib.contextmanager
def blamed(code: str, *messages: type[Exception]) -> Iterator[None]:
    """Turn errors of a plugin's ``code`` into one that names it, except RecipeError and other ``messages`` to the user.

    Raises:
        PluginError: in the place of any other error.
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
            f"{code} raised {type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno}); mend the "
            "plugin (--debug shows the traceback)"
        ) from error
