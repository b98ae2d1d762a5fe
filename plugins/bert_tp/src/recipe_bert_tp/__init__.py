"""Tensor-parallel BERT pre-training.

``plugin.py``: a recipe whose parts other plugins register. ``variants/``: one YAML file per variant.
"""
