"""Plugins that load or do not, and the findings of their engines on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from recipe_core.hooks import specs
from recipe_core.hooks.finding import Finding
from recipe_core.hooks.registry import Registry, load

_TOPIC = "Plugins"


def plugin_findings(registry: Registry | None = None) -> Iterator[Finding]:
    """The plugins that load, and each complaint about the others."""
    registry = registry or load()
    yield Finding(_TOPIC, "ok", f"loaded: {', '.join(registry.plugins) or 'none'}")
    for complaint in [*registry.complaints(), *registry.conflicts()]:
        yield Finding(_TOPIC, "broken", complaint, "mend or uninstall it, or leave it out with RECIPE_PLUGINS")


def engine_findings(registry: Registry | None = None, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Each engine's findings, under its name."""
    for name, claims in sorted((registry or load()).claims["engine"].items()):
        spec = claims[0].item
        assert isinstance(spec, specs.EngineSpec)  # the registry takes no other
        yield Finding(f"Engine {name}", "ok", spec.summary)
        for finding in specs.load(spec.findings, f"engine {name!r}")(environment) if spec.findings else ():
            yield replace(finding, topic=f"Engine {name}")
