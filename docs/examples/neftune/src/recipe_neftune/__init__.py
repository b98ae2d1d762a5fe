"""Noise on the embeddings of any model: the transform ``neftune``."""
