"""Tokenizers: reading, comparing, and encoding with them.

``vocabulary.py``: tokenizers in the forms that people have them in. ``encoders.py``: three ways from text to token ids;
``rank_file.py``: a tokenizer as gigatoken reads it fastest. ``known.py``, ``cache.py``: what was found out about a
tokenizer. ``text.py``, ``files.py``: token ids back to text, and the tokenizer as AutoTokenizer takes it.
"""
