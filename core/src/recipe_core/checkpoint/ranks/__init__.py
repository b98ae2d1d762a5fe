"""Checkpoints with one file per rank: how tensors are sharded, split and joined.

``join.py``: split and join states; read it first. ``cuts.py``: the partition of each tensor, from the tensor plan.
``assemble.py``: whole tensors from shards. ``files.py``: ranks in file names. ``optimizer.py``: optimizer state by
parameter number.
"""
