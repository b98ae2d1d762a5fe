"""Muon, an optimizer for the matrices of a model's blocks.

``plugin.py``: what the plugin contributes; ``settings.py``: its settings, its memory, and what it refuses;
``optimizer.py``: the optimizer.
"""
