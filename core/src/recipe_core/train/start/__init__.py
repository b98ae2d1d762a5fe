"""The start of a run: its folder, and the checkpoint that it continues from.

``resume.py``: the state that a run begins with; read it first. ``pretrained.py``: finished runs and checkpoints for
other recipes. ``destination.py``, ``folder.py``: the name, the lock and the record of the run folder. ``check/``: a
job before it runs, without torch; ``preflight.py``: checks of a start on a model without values. ``watch.py``: the
watchdog of a run.
"""
