"""Everything that the core asks of a plugin, for ``recipe plugin check`` and for the tests that a plugin inherits.

``examine.py``: the list of all checks, and the walk over a plugin's contributions; read it first.
``light.py``: names, settings, imports, variants. ``model.py``, ``samples.py``, ``layouts.py``, ``formats.py``,
``loop_parts.py``: one kind of contribution each. ``training.py``: recipes, through the real command; ``toy_runs.py``:
runs of the core's toy. ``subject.py``: the plugin that is examined. ``outcome.py``: the outcome of a check.
``suite.py``: the checks as a class of tests; it alone needs pytest.
"""
