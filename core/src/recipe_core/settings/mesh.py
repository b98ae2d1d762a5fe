"""The axes of the device mesh of a layout, and its division of memory."""

from __future__ import annotations

import math

from recipe_core.errors import ConfigError, PluginError
from recipe_core.hooks.specs import Division, Layout, Part
from recipe_core.hooks.target import as_plugin_error


def mesh_axes(layout: Part[Layout], world_size: int) -> dict[str, int]:
    """Return the sizes of the mesh axes by name.

    Raises:
        ValueError: the layout refuses ``world_size`` processes, with a line for each reason.
        ConfigError: the axes are those of another number of processes.
        PluginError: the layout raises, returns something else, or has no axis ``dp``.
    """
    code = f"layout {layout.spec.name!r}: {type(layout.config).__name__}.axes({world_size})"
    with as_plugin_error(code, ValueError):
        axes: object = layout.config.axes(world_size)
    if not isinstance(axes, dict) or not all(type(size) is int and size > 0 for size in axes.values()):
        raise PluginError(
            f"{code} returned {axes!r:.60}; expected the axes and their sizes, as in {{'dp': 2, 'tp': 4}}"
        )
    if "dp" not in axes:
        raise PluginError(
            f"layout: {layout.spec.name} names no axis 'dp' (its axes: {', '.join(axes)}); fix the plugin"
        )
    if (needed := math.prod(axes.values())) != world_size:
        text = " x ".join(f"{name}={size}" for name, size in axes.items())
        raise ConfigError(
            f"layout: {layout.spec.name} makes a mesh of {text}, {needed} processes, and this run has {world_size}"
        )
    return axes


def layout_division(layout: Part[Layout], world_size: int) -> Division | None:
    """Return the division of memory by a layout; None: unknown.

    Raises:
        PluginError: the layout raises, or returns something else.
    """
    code = f"layout {layout.spec.name!r}: {type(layout.config).__name__}.division({world_size})"
    with as_plugin_error(code):
        division: object = layout.config.division(world_size)
    if not isinstance(division, Division | None):
        raise PluginError(f"{code} returned {division!r:.60}; expected a Division, or None")
    return division
