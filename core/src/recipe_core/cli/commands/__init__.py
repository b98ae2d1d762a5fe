"""Commands whose code has a folder of its own, which is imported when one is called.

``check.py``: ``recipe check``; ``nodes.py``: its ``--on-nodes``. ``doctor.py``: ``recipe doctor``. ``describe.py``:
settings explained, and help about what a line names.
"""
