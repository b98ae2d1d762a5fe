"""Reading text and making data sets. Nothing in this folder imports torch.

``text/``: files and dumps to documents, clean text and sentences.
``prepare/``: the parts that every ``recipe prepare`` is built from.
"""
