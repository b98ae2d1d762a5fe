"""The conformance tests; `recipe plugin check new_plugin` prints the same checks as a table."""

from recipe_core.testing import PluginConformance


class TestNewPlugin(PluginConformance):
    plugin = "recipe_new_plugin.plugin"
