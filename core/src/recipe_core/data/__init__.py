"""Reading text and making data sets. Nothing in this folder imports torch.

``text/``: files and dumps to documents, clean text and sentences; read it first. ``text_settings.py``: the settings of
preparations that say which texts to read; they stand apart from ``text/``, whose imports cost time.
``prepare/``: the parts that every ``recipe prepare`` is built from.
``identity.py``: digests of data and tokenizer that a run records, and their comparison.
``sealed.py``: JSON manifests with sizes, SHA-256 and a digest of their own, for data sets and checkpoints.
"""
