"""``recipe prepare bert_hdf5`` and ``bert_packed``.

``hdf5.py``: the whole preparation; read it first. Its stages: text to tokens on disk (``tokens.py``,
``store.py``), to pairs of segments (``pairs.py``), to shards (``sink.py``). ``pack.py``: shards with one sample per row
to packed shards. ``parts.py``, ``packed_parts.py``: parts of both, and their merges. ``workers.py``: number of worker
processes. ``example.py``: small inputs for tests.
"""
