"""Training: one run from a job to its last step.

``run.py``: builds every part in order, then trains; read it first. ``loop.py``: the training loop, the only one.
``start/``: the run folder, and the checkpoint that a run continues from. ``feed.py``: micro batches, read ahead.
``recompute.py``: activation checkpointing. ``compiling.py``: ``torch.compile``, block by block. ``replicas.py``:
comparison of replicated values between ranks. ``divergence.py``: skipped steps and rollbacks. ``stopping.py``: signals,
agreed on by all ranks. ``watch.py``: the watchdog of a run. ``dry_run.py``: a run of two steps for the compiler.
``seeds.py``: seeds. ``metrics/``: metrics measured, written, read back and shown. ``optim/``: the optimizers.
"""
