"""Conformance checks of a plugin, for ``recipe plugin check`` and for the tests that a plugin inherits.

``examine.py``: the list of all checks, and the loop over a plugin's contributions; read it first.
``light.py``: names, settings, imports, variants. ``model.py``, ``samples.py``, ``layouts.py``, ``formats.py``,
``loop_parts.py``: one kind of contribution each. ``training.py``: recipes, through the real command; ``toy_runs.py``:
runs of the core's toy. ``subject.py``: the plugin under test. ``outcome.py``: the outcome of a check.
``command.py``: the output of ``recipe plugin check``. ``suite.py``: the checks as a test class; only this module needs
pytest.
"""
