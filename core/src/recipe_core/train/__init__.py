"""Training: one run from a job to its last step.

``run.py``: builds every part in order, then trains; read it first. ``loop.py``: the training loop, the only one.
``resume.py``: the state that a run begins with; ``pretrained.py``: finished runs and checkpoints for other recipes.
``destination.py``, ``folder.py``: the run folder's name and its owner. ``preflight.py``, ``dry_run.py``: a run tried
without values, or for two steps. ``feed.py``: micro batches, read ahead. ``recompute.py``: activation checkpointing.
``replicas.py``: copies compared between ranks. ``seeds.py``: seeds. ``metrics/``: metrics measured, written, read back
and shown. ``optim/``: the optimizers.
"""
