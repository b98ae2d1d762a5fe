"""Training: one run from a job to its last step.

``run.py``: builds every part in order, then trains; read it first. ``loop.py``: the training loop, the only one.
``resume.py``: what a run begins with; ``preflight.py``: the same tried beforehand, without values. ``folder.py``,
``destination.py``: whose the run folder is, and its name where none was given.
``feed.py``: micro batches, read ahead. ``metrics/``: what is measured, written, read back and shown. ``optim/``: the
optimizers. ``replicas.py``: what ranks hold copies of, compared.
"""
