"""Hugging Face's Trainer instead of the core's loop.

``seed_run.py``: one fine-tuning, with one seed; read it first. ``fine_tuner.py``: the Trainer with the core's
metrics, checkpoints and signals; ``traced.py``: the same on an engine that traces operations into graphs
(PyTorch/XLA). ``step_skipper.py``: ``train.on_divergence``. ``arguments.py``: settings as TrainingArguments.
``room.py``: disk space for the checkpoints.
"""
