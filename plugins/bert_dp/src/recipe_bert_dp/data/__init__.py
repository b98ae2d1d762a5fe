"""The datasets ``bert_hdf5`` and ``bert_packed``.

``samples.py``: batches; read it first. ``stream.py``: the order of the rows. ``shards.py``, ``column.py``: HDF5 files.
``stored.py``: checks of a file before it is read. ``heads.py``, ``facts.py``: shapes of shards before a run.
``identity.py``: digests of the shards. ``checks.py``: checks of the rows that a run reads; ``verify.py``,
``inspect.py``: ``recipe verify`` and ``recipe inspect``.
``corpus.py``: the embedded corpus. ``vocabulary.py``, ``decode.py``, ``tokenizer.py``: text to token ids, back to text,
and as Hugging Face's tokenizer.
"""
