"""Tools for tests of plugins.

``conformance/``: the checks of ``recipe plugin check`` and the tests that every plugin inherits; read it first.
``runs.py``: run recipes through the real command. ``spawn.py``: run a function on several ranks; ``forks.py``,
``forked_rank.py``: start their processes fast. ``checkpoints.py``: convert and read checkpoints. ``activations.py``:
measure the memory that autograd keeps. ``waiting.py``: find operations that wait for an accelerator, without one;
``compiling.py``: count the graphs of a compiled run. ``bounds.py``: limits of time and memory. ``unhurried.py``: make
tests of the watchdog independent of the machine's speed. ``toy.py``, ``toy_parts.py``: a plugin small enough to read
in a minute. ``packages.py``: imitations of installed packages. ``objects/``: a server
of object storage. A plugin's whole conformance test is::

    from recipe_core.testing import PluginConformance

    class TestConformance(PluginConformance):
        plugin = "recipe_megatron_gpt.plugin"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recipe_core.testing.runs import Finished, at_once, command, run_tiny
from recipe_core.testing.spawn import spawn

if TYPE_CHECKING:
    from recipe_core.testing.conformance.suite import PluginConformance

__all__ = ["Finished", "PluginConformance", "at_once", "command", "run_tiny", "spawn"]


def __getattr__(name: str) -> object:
    """Import PluginConformance, and pytest with it, on first use: ``recipe plugin check`` needs neither."""
    if name == "PluginConformance":
        from recipe_core.testing.conformance.suite import PluginConformance

        return PluginConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
