"""The axes of the device mesh of a layout, and its division of memory."""

from __future__ import annotations

from recipe_core.errors import PluginError
from recipe_core.hooks.specs import Division, Layout, Part
from recipe_core.hooks.target import as_plugin_error


def mesh_axes(layout: Part[Layout], world_size: int) -> dict[str, int]:
    """Return the sizes of the mesh axes by name.

    Raises:
        ValueError: the layout does not fit ``world_size`` processes.
        PluginError: the layout raises, or returns something else.
    """
    code = f"layout {layout.spec.name!r}: {type(layout.config).__name__}.axes({world_size})"
    with as_plugin_error(code, ValueError):
        axes: object = layout.config.axes(world_size)
    if not isinstance(axes, dict) or not all(type(size) is int and size > 0 for size in axes.values()):
        raise PluginError(
            f"{code} returned {axes!r:.60}; expected the axes and their sizes, as in {{'dp': 2, 'tp': 4}}"
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
