"""Does a checkpoint fit a run? Names and shapes, settings that change no shape, and where its tensors come from.

``same_model.py``: settings that a checkpoint records, compared with a job's; read it first. ``provenance.py``: the
model and run that it belongs to. ``mismatch.py``: the message for names and shapes that differ. ``trained.py``: the
model of a checkpoint, for inference.
"""
