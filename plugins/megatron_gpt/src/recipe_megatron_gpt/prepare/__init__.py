"""``recipe prepare gpt_indexed``.

``indexed.py``: the preparation as a whole; read it first. ``worker.py``: its worker processes. ``store.py``: token
files while they grow, journaled, so that an interrupted preparation can continue.
"""
