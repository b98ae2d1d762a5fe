"""Cloze questions for any language model: the evaluation ``cloze``."""
