"""Training: one run from a job to its last step.

``run.py``: builds every part in order, then trains; read it first. ``loop.py``: the training loop, the only one.
``resume.py``: what a run begins with; ``folder.py``: whose the run folder is.
``feed.py``: micro batches, read ahead; ``meter.py``, ``metrics.py``, ``curves.py``, ``report.py``, ``results.py``:
what is measured, written, read back and shown. ``optim/``: the optimizers.
"""
