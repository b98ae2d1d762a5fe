"""``recipe prepare bert_hdf5`` and ``bert_packed``.

``hdf5.py``: text to tokens (``tokens.py``, ``store.py``), to pairs of segments (``pairs.py``), to shards (``sink.py``).
``pack.py``: several samples a row.
"""
