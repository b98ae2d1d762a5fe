"""The conformance tests of every plugin, for this one."""

from recipe_core.testing import PluginConformance


class TestConformance(PluginConformance):
    plugin = "recipe_ray.plugin"
