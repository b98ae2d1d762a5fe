"""Muon, an optimizer for the matrices of a model's blocks.

``plugin.py``: the plugin's contributions; ``settings.py``: settings, memory, and unsupported settings of a run;
``optimizer.py``: the optimizer.
"""
