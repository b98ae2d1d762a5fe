"""``recipe prepare bert_hdf5`` and ``bert_packed``.

``hdf5.py``: the preparation as a whole; read it first. Its stages: text to tokens on the disk (``tokens.py``,
``store.py``), to pairs of segments (``pairs.py``), to shards (``sink.py``). ``pack.py``: shards with one sample a row
to packed shards. ``workers.py``: the number of worker processes.
"""
