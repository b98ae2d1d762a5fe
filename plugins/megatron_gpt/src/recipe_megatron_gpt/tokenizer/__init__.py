"""Tokenizers: reading, comparing, and encoding with them.

``encoders.py``: three ways from text to token ids; read it first. ``vocabulary.py``: the forms in which people have
their tokenizers. ``rank_file.py``: a tokenizer in the form that gigatoken reads fastest. ``characters.py``,
``parts.py``: characters that two libraries split differently, and long texts in parts. ``known.py``, ``cache.py``:
facts about a tokenizer, and where they are kept. ``text.py``: token ids to text and back; ``files.py``: a folder for
AutoTokenizer.
"""
