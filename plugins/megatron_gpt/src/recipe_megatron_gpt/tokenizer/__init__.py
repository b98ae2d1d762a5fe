"""Tokenizers: reading, comparing, and encoding with them.

``encoders.py``: three methods from text to token ids; read it first. ``characters.py``, ``parts.py``: characters that
two libraries split differently, and long texts in parts. ``known.py``, ``cache.py``: facts about a tokenizer, and their
cache. ``text.py``: token ids to text and back; ``files.py``: files for AutoTokenizer. The file formats of tokenizers
are read by ``recipe_core.checkpoint.inference.tokenizer``.
"""
