"""All that the core asks of a plugin."""

from recipe_core.testing import PluginConformance


class TestCounting(PluginConformance):
    plugin = "recipe_counting.plugin"
