"""Match a checkpoint with a run: names and shapes, settings that change no shape, and provenance.

``same_model.py``: compares the settings that a checkpoint records with a job's; read it first. ``provenance.py``: the
model and run that it belongs to. ``mismatch.py``: the message for names and shapes that differ. ``trained.py``: the
model of a checkpoint, for inference.
"""
