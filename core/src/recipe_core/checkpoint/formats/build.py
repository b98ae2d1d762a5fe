"""Build a plugin's checkpoint format, and name the plugin in the errors of its code. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recipe_core.errors import PluginError
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs import CheckpointFormat, Part
from recipe_core.hooks.target import as_plugin_error, load
from recipe_core.launch.failures import is_of_machine

if TYPE_CHECKING:
    from recipe_core.checkpoint.formats.base import Format

_BASE = "recipe_core.checkpoint.formats.base:Format"
"""The class of all formats, which imports torch."""


def build_format(part: Part[CheckpointFormat]) -> Format:
    """Build a format; it gets the name that it is registered by.

    Raises:
        PluginError: ``build`` raises, or returns something else.
    """
    code = code_of(part.spec)
    with as_plugin_error(code, MemoryError, OSError):
        answer = part.build(part.config)
    base: Any = load(_BASE, "the core")
    if not isinstance(answer, base):
        raise PluginError(f"{code} returned {type(answer).__name__}; expected a {_BASE.replace(':', '.')}")
    form: Format = answer
    form.name = part.spec.name
    return form


def as_format_error(form: Format, method: str) -> as_plugin_error:
    """Raise errors of a plugin's format as PluginError; those of the machine pass, and those of the core's formats."""
    kind, own = type(form), type(form).__module__.startswith("recipe_core.")
    code = f"checkpoint format {form.name!r}: {f'{kind.__module__}:{kind.__name__}.{method}'!r}"
    return as_plugin_error(code, passes=lambda error: own or is_of_machine(error))
