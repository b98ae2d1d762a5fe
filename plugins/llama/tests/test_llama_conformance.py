"""Everything that the core asks of a plugin."""

from recipe_core.testing import PluginConformance


class TestLlama(PluginConformance):
    plugin = "recipe_llama.plugin"
