"""Hugging Face's Trainer in the place of the core's loop.

``leg.py``: one fine-tuning of a run, with one seed; read it first. ``fine_tuner.py``: the Trainer with the core's
metrics, checkpoints and signals; ``traced.py``: the same on an engine that gathers operations into graphs
(PyTorch/XLA). ``arguments.py``: settings as TrainingArguments.
"""
