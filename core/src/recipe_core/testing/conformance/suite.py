"""The tests that every plugin inherits."""

from __future__ import annotations

from typing import Any

import pytest

from recipe_core.hooks.registry import load
from recipe_core.testing.conformance.examine import CHECKS, examine
from recipe_core.testing.conformance.subject import Plugin


class PluginConformance:
    """Inherit it in a test file and name the plugin's module.

    Its one test makes every check of ``recipe plugin check``; one that finds nothing to look at (a layout, in a plugin
    without any) is skipped with its reason.
    """

    plugin = ""
    """Module with the hooks, as the entry point names it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.test_conforms is not PluginConformance.test_conforms:
            raise TypeError(
                f"{cls.__name__}.test_conforms takes the conformance tests away; mend what they found instead"
            )

    @pytest.fixture(scope="class")
    @classmethod
    def examined(cls, tmp_path_factory: pytest.TempPathFactory) -> Plugin:
        """The plugin, with everything that is installed."""
        registry = load()
        assert not registry.broken, registry.broken
        return Plugin(cls.plugin, cls.plugin, registry, tmp_path_factory.mktemp("conformance"))

    @pytest.mark.parametrize("check", CHECKS)
    def test_conforms(self, check: str, examined: Plugin) -> None:
        """Every check, of every contribution that it is for."""
        outcomes = list(examine(examined, [check]))
        failed = [f"{one.subject}: {one.text}" for one in outcomes if one.state == "failed"]
        assert not failed, "\n".join(failed)
        if not any(one.state == "passed" for one in outcomes):
            pytest.skip(
                "; ".join(f"{one.subject}: {one.text}" for one in outcomes) or "it contributes nothing of this kind"
            )
