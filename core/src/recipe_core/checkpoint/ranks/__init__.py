"""Checkpoints of one file for each rank: where tensors are cut, how they are divided and joined."""
