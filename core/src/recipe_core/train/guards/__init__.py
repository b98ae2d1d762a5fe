"""Checks of a running training: steps that diverge, and replicas that drift apart.

``divergence.py``: steps that are not applied. ``replicas.py``: replicas compared between ranks.
``golden.py``: losses compared with those of an earlier run.
"""
