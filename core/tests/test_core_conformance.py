"""The core is a plugin like any other; and the suite cannot be thinned out without a sign."""

import pytest

from recipe_core.testing import PluginConformance
from recipe_core.testing.conformance.examine import CHECKS


class TestConformance(PluginConformance):
    plugin = "recipe_core.plugin"


def test_the_suite_is_whole() -> None:
    assert {name for name in vars(PluginConformance) if name.startswith("test_")} == {"test_conforms"}
    assert CHECKS == (
        "contributes", "imports no torch", "name and summary", "targets", "settings", "facts", "tensor plan", "stages",
        "documents", "initial values", "loss", "activations", "adapters", "prepare", "parts", "mesh", "trains alike",
        "round trip", "resumes from it", "light functions", "exit codes", "steps alike", "same after a stop", "rates",
        "records",
        "help", "same samples", "any order", "changes nothing", "same numbers", "variants", "trains", "resumes",
        "layouts",
    )  # fmt: skip


def test_a_plugin_cannot_take_a_test_away() -> None:
    with pytest.raises(TypeError, match="test_conforms takes the conformance tests away"):

        class Thinner(PluginConformance):
            test_conforms = None  # type: ignore[assignment]
