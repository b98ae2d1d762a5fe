"""``recipe prepare gpt_indexed``.

``indexed.py``: the whole preparation; read it first. ``worker.py``: its worker processes. ``store.py``: journaled token
files, so that an interrupted preparation can continue.
"""
