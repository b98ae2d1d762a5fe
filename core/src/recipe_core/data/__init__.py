"""Read text and make data sets. Nothing in this folder imports torch.

``text/``: from files and dumps to documents, clean text and sentences; read it first. ``text_settings.py``: settings of
the texts to read, separate from ``text/``, whose imports cost time.
``prepare/``: the building blocks of every ``recipe prepare``.
``identity.py``: digests of data and tokenizer that a run records, and their comparison.
``mixture.py``, ``mixture_facts.py``, ``filtered.py``: the core's own dataset and data wrapper.
``tokenizer.py``: checks of tokenizer files.
``digest.py``: JSON manifests with a digest of themselves, and checks of the files that they list.
"""
