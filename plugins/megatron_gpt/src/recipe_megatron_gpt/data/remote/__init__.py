"""Token files in object storage.

``tokens.py``: the token ids of a .bin object, present in memory where they are needed; read it first. ``ahead.py``: the
steps whose tokens are fetched before they are read. ``places.py``: the token files that an address names.
``manifest.py``: the manifest next to them, and the comparison with it.
"""
