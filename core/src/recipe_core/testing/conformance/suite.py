"""The tests that every plugin inherits."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest

from recipe_core.hooks.markers import GROUP
from recipe_core.hooks.registry import Registry, load
from recipe_core.testing.conformance.examine import CHECKS, examine
from recipe_core.testing.conformance.subject import Plugin


def installed_with(module: str) -> Registry:
    """Load all installed plugins; that of ``module`` must not be broken, and others may be."""
    registry = load()
    own = [point.name for point in entry_points(group=GROUP) if point.value == module]
    assert not (broken := {name: registry.broken[name] for name in own if name in registry.broken}), broken
    return registry


class PluginConformance:
    """Conformance tests: inherit the class in a test file and name the plugin's module.

    Its test runs every check of ``recipe plugin check``; a check that does not apply (of a layout, in a plugin without
    layouts) is skipped with the reason.
    """

    plugin = ""
    """Module with the hooks, as the entry point names it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.test_conforms is not PluginConformance.test_conforms:
            raise TypeError(
                f"{cls.__name__}.test_conforms takes the conformance tests away; fix what they found instead"
            )

    @pytest.fixture(scope="class")
    @classmethod
    def examined(cls, tmp_path_factory: pytest.TempPathFactory) -> Plugin:
        """The plugin, with all installed plugins."""
        return Plugin(cls.plugin, cls.plugin, installed_with(cls.plugin), tmp_path_factory.mktemp("conformance"))

    @pytest.mark.parametrize("check", CHECKS)
    def test_conforms(self, check: str, examined: Plugin) -> None:
        """Run a check on all contributions that it applies to."""
        outcomes = list(examine(examined, [check]))
        failed = [f"{o.subject}: {o.text}" for o in outcomes if o.state == "failed"]
        assert not failed, "\n".join(failed)
        if not any(o.state == "passed" for o in outcomes):
            pytest.skip("; ".join(f"{o.subject}: {o.text}" for o in outcomes) or "it contributes nothing of this kind")
