"""Arrays over token files: the indices of a run.

``lengths.py``: how many samples and entries. ``indices.py``: memory and disk that they need, before a run.
``cached.py``: arrays in the cache, built once per machine. ``mapped.py``: memory maps.
"""
