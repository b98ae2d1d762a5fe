"""Checkpoints of one file for each rank: the partition of tensors, dividing and joining them."""
