"""Megatron-LM's checkpoints: ``format.py`` reads and writes their files, ``names.py`` converts names of tensors."""
