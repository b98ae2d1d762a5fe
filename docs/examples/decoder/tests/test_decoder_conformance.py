"""Everything that the core asks of a plugin."""

from recipe_core.testing import PluginConformance


class TestDecoder(PluginConformance):
    plugin = "recipe_decoder.plugin"
