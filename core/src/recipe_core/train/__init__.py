"""Training: one run from a job to its last step.

``run.py``: builds every part in order, then trains; read it first. ``loop.py``: the training loop, the only one.
``step.py``: one optimizer step, and evaluation. ``cadence.py``: when to log, evaluate, save and compare. ``saving.py``:
replicas compared, then saved. ``feed.py``: micro batches, read ahead. ``guards/``: steps that diverge, replicas that
drift apart. ``stopping.py``: signals, agreed on by all ranks. ``dry_run.py``: two steps for the compiler. ``seeds.py``:
seeds. ``callbacks/``: what plugins do at named moments. ``building/``: model and optimizer. ``start/``: the run folder,
and what a run continues from. ``metrics/``: metrics measured, written, read back and shown. ``optim/``: the optimizers.
"""
