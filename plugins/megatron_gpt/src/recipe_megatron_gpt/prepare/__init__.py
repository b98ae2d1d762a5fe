"""``recipe prepare gpt_indexed``.

``indexed.py``: the whole preparation; read it first. ``parts.py``: a part of it, and the merge of
parts. ``worker.py``: its worker processes. ``store.py``: journaled token
files, so that an interrupted preparation can continue.
"""
