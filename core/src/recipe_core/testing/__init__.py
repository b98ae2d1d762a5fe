"""What the tests of any plugin need: run its recipes, spawn ranks, and the conformance tests that it inherits.

A plugin's whole conformance test is::

    from recipe_core.testing import PluginConformance

    class TestConformance(PluginConformance):
        plugin = "recipe_megatron_gpt.plugin"
"""

from recipe_core.testing.conformance import PluginConformance
from recipe_core.testing.runs import Finished, at_once, command, run_tiny
from recipe_core.testing.spawn import spawn

__all__ = ["Finished", "PluginConformance", "at_once", "command", "run_tiny", "spawn"]
