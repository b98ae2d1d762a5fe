"""Findings about plugins that do not load, and of the engines on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from recipe_core.errors import PluginError
from recipe_core.hooks import specs
from recipe_core.hooks.finding import Finding
from recipe_core.hooks.registry import Registry, load
from recipe_core.hooks.target import call_list

_TOPIC = "Plugins"


def plugin_findings(registry: Registry | None = None) -> Iterator[Finding]:
    """Yield the loaded plugins, and each complaint about others."""
    registry = registry or load()
    yield Finding(_TOPIC, "ok", f"loaded: {', '.join(registry.plugins) or 'none'}")
    for complaint in [*registry.complaints(), *registry.conflicts()]:
        yield Finding(_TOPIC, "broken", complaint, "fix or uninstall it, or leave it out with RECIPE_PLUGINS")
    for note in registry.shadowed():
        yield Finding(_TOPIC, "note", note)


def engine_findings(registry: Registry | None = None, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yield each engine's findings, with the engine as topic."""
    for name, claim in sorted((registry or load()).registrations["engine"].items()):
        spec = claim.item
        assert isinstance(spec, specs.EngineSpec)  # the registry takes no other
        yield Finding(f"Engine {name}", "ok", spec.summary)
        try:
            findings = call_list(spec.findings, f"engine {name!r}", environment) if spec.findings else []
        except PluginError as error:
            yield Finding(f"Engine {name}", "broken", str(error))
            continue
        yield from (replace(finding, topic=f"Engine {name}") for finding in findings)
