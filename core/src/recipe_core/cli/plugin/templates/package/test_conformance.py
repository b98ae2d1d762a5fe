"""Everything that the core asks of a plugin; `recipe plugin check new_plugin` prints the same as a table."""

from recipe_core.testing import PluginConformance


class TestNewPlugin(PluginConformance):
    plugin = "recipe_new_plugin.plugin"
