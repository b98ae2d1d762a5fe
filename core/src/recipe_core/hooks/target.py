"""Targets: places of code, ``package.module:function``, that contributions name and only a run imports."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

from recipe_core.errors import PluginError


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
