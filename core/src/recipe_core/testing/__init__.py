"""Tools for the tests of plugins.

``conformance.py``: the tests that every plugin inherits; read it first. ``runs.py``: run recipes through the real
command. ``spawn.py``: run a function on several ranks; ``forks.py``, ``forked_rank.py``: do so fast.
``checkpoints.py``, ``activations.py``: convert checkpoints, and measure what autograd keeps. ``toy.py``,
``toy_parts.py``: a plugin small enough to read in a minute. ``packages.py``, ``hosts.py``: imitations of installed
packages and of machines. A plugin's whole conformance test is::

    from recipe_core.testing import PluginConformance

    class TestConformance(PluginConformance):
        plugin = "recipe_megatron_gpt.plugin"
"""

from recipe_core.testing.conformance import PluginConformance
from recipe_core.testing.runs import Finished, at_once, command, run_tiny
from recipe_core.testing.spawn import spawn

__all__ = ["Finished", "PluginConformance", "at_once", "command", "run_tiny", "spawn"]
