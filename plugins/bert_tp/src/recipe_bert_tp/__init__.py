"""BERT, tensor parallel.

``plugin.py``: a recipe of parts that other plugins bring, by name. ``variants/``: one YAML file per variant.
"""
