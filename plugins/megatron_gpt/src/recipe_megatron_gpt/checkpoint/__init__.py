"""Megatron-LM's checkpoints: ``format.py`` reads and writes their files, ``names.py`` changes names of tensors."""
