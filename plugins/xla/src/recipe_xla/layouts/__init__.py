"""Layouts on PyTorch/XLA devices."""
