"""Parts of ``recipe prepare`` as tasks of Ray Core.

``plugin.py``: the plugin's contribution; ``executor.py``: the executor.
"""
