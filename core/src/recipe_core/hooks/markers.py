"""The names by which pluggy and entry points know the hooks."""

from __future__ import annotations

import pluggy

PROJECT = "recipe"
GROUP = "recipe.plugins"
hookimpl = pluggy.HookimplMarker(PROJECT)
"""The decorator of the functions in a plugin's module that implement a hook."""
hookspec = pluggy.HookspecMarker(PROJECT)
