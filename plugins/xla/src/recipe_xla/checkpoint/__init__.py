"""Checkpoint formats of PyTorch/XLA's world, read and written without it."""
