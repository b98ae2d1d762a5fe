"""Checkpoints of one file for each rank: the partition of tensors, dividing and joining them.

``join.py``: states divided and joined; read it first. ``cuts.py``: the partition of each tensor, from the tensor plan.
``assemble.py``: whole tensors from shards. ``files.py``: ranks in file names. ``optimizer.py``: optimizer state by
parameter number.
"""
