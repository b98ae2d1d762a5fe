"""Commands whose code is in a folder of its own, which is imported on use.

``check.py``: ``recipe check``; ``nodes.py``: its ``--on-nodes``. ``doctor.py``: ``recipe doctor``. ``describe.py``:
descriptions of settings, and help about the recipe of a line.
"""
