"""The version of the interface between the core and plugins, and the refusal of plugins made for a newer one."""

from __future__ import annotations

import ast
import importlib.util
from typing import TYPE_CHECKING

from recipe_core.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

API = 1
"""The version of the interface: hooks, specs and the names of :mod:`recipe_core`. Within one version, it only grows. A
plugin's module declares the version that it was made for as ``API = 1``, the default."""


def load_point(point: EntryPoint) -> object:
    """Import the plugin that an entry point names.

    Raises:
        PluginError: it is made for a newer API, also if it cannot be imported for that reason.
    """
    try:
        plugin: object = point.load()
    except Exception:
        require_api(_declared(point.module))
        raise
    return plugin


def require_api(version: object) -> None:
    """Refuse a plugin made for a version of the interface that this core does not have.

    Raises:
        PluginError: ``version`` is newer, or not a version.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise PluginError(
            f"API = {version!r} is no version of the interface of plugins; expected a number from 1 to {API}"
        )
    if version > API:
        raise PluginError(
            f"it is made for API {version}, and this recipe-core has API {API}; upgrade recipe-core (python -m pip "
            "install --upgrade recipe-core), or install an earlier release of the plugin"
        )


def _declared(module: str) -> object:
    """The value of ``API`` in the source of ``module``, which need not be importable; 1 by default."""
    try:
        spec = importlib.util.find_spec(module)
        source = importlib.util.decode_source(spec.loader.get_data(spec.origin)) if spec else ""  # type: ignore[union-attr]
        tree = ast.parse(source)
    except Exception:  # the import error says more
        return 1
    for line in tree.body:
        if isinstance(line, ast.Assign) and [ast.unparse(target) for target in line.targets] == ["API"]:
            try:
                return ast.literal_eval(line.value)
            except ValueError:
                return 1
    return 1
