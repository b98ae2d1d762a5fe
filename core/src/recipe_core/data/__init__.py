"""Reading text and making data sets. Nothing in this folder imports torch.

``text/``: files and dumps to documents, clean text and sentences; read it first.
``prepare/``: the parts that every ``recipe prepare`` is built from.
``sealed.py``: JSON manifests with sizes, SHA-256 and a digest of their own, for data sets and checkpoints.
"""
