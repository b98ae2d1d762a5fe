"""Whether the plugins load, and name different things."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_core.cli.doctor.finding import Finding
from recipe_core.hooks.registry import load

_TOPIC = "Plugins"


def plugin_findings() -> Iterator[Finding]:
    """The plugins that load, and each complaint about the others."""
    registry = load()
    yield Finding(_TOPIC, "ok", f"loaded: {', '.join(registry.plugins) or 'none'}")
    for complaint in [*registry.complaints(), *registry.conflicts()]:
        yield Finding(_TOPIC, "broken", complaint, "mend or uninstall it, or leave it out with RECIPE_PLUGINS")
