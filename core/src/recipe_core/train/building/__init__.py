"""The model and the optimizer of a run.

``build.py``: mesh, model under its layout, and optimizer, from a job; read it first. ``compiling.py``:
``torch.compile``, block by block. ``recompute.py``: activation checkpointing.
"""
