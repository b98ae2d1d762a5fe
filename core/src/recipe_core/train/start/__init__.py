"""The beginning of a run: where it writes, and what it continues from.

``resume.py``: the state that a run begins with; read it first. ``pretrained.py``: finished runs and checkpoints for
other recipes. ``destination.py``, ``folder.py``: the run folder's name, and its owner. ``preflight.py``: a run tried
without values.
"""
