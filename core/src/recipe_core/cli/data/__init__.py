"""Commands on data sets.

``prepare.py``: ``recipe prepare``; read it first. ``parts.py``: one of its parts, and their merge; ``executors.py``:
all parts side by side. ``files.py``: ``recipe inspect`` and ``recipe verify``.
"""
