"""The datasets ``bert_hdf5`` and ``bert_packed``.

``samples.py``: batches; read it first. ``stream.py``: the order of rows; ``shards.py``, ``column.py``: HDF5 files.
``checks.py``, ``verify.py``, ``inspect.py``: what must hold in a shard. ``facts.py``: known from the headers alone.
``corpus.py``: the embedded corpus. ``vocabulary.py``, ``decode.py``, ``tokenizer.py``: token ids and text.
"""
