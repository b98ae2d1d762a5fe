"""The tests that every plugin inherits."""

from __future__ import annotations

from typing import Any

import pytest

from recipe_core.hooks.registry import load
from recipe_core.testing.conformance.examine import CHECKS, examine
from recipe_core.testing.conformance.subject import Plugin


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
        registry = load()
        assert not registry.broken, registry.broken
        return Plugin(cls.plugin, cls.plugin, registry, tmp_path_factory.mktemp("conformance"))

    @pytest.mark.parametrize("check", CHECKS)
    def test_conforms(self, check: str, examined: Plugin) -> None:
        """Run a check on all contributions that it applies to."""
        outcomes = list(examine(examined, [check]))
        failed = [f"{o.subject}: {o.text}" for o in outcomes if o.state == "failed"]
        assert not failed, "\n".join(failed)
        if not any(o.state == "passed" for o in outcomes):
            pytest.skip("; ".join(f"{o.subject}: {o.text}" for o in outcomes) or "it contributes nothing of this kind")
