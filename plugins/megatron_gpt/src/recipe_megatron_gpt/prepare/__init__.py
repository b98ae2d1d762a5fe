"""``recipe prepare gpt_indexed``.

``indexed.py``: the preparation as a whole; ``worker.py``: what its worker processes do; ``store.py``: token files while
they grow.
"""
